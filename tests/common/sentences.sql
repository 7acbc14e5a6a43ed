-- What is true of every live job, whatever has happened to it. In production no INSERT pays for these checks, because
-- only the engine could break them: here, every test of the engine proves that it does not.
alter table bugle.jobs_live
  add constraint live_jobs_are_not_finished check (finished_at is null),
  add constraint running_jobs_have_a_claim check (
    state <> 'running' or (claim > 0 and attempt > 0 and worker is not null and started_at is not null)),
  add constraint paused_jobs_know_where_they_were check ((state = 'paused') = (paused_from is not null));
