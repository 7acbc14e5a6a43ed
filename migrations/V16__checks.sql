-- The checks of a job, each only where it can fail. A check is read and planned anew by every INSERT and UPDATE: all five, on
-- every table, were more than a quarter of what the INSERT of one job cost.
--
-- That a state is known is said by the partitions: there is no place for a row with another one.

alter table bugle.jobs
  drop constraint state_is_known,
  drop constraint running_jobs_have_a_claim,
  drop constraint finished_jobs_say_when,
  drop constraint paused_jobs_know_where_they_were,
  drop constraint failed_jobs_say_why;

alter table bugle.jobs_live
  add constraint live_jobs_are_not_finished check (finished_at is null),
  add constraint running_jobs_have_a_claim check (
    state <> 'running' or (claim > 0 and attempt > 0 and worker is not null and started_at is not null)),
  add constraint paused_jobs_know_where_they_were check ((state = 'paused') = (paused_from is not null));

alter table bugle.jobs_ended
  add constraint finished_jobs_say_when check (finished_at is not null);

alter table bugle.jobs_failed
  add constraint finished_jobs_say_when check (finished_at is not null),
  add constraint failed_jobs_say_why check (reason is not null);
