begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job := test.running(v_worker);
  v_job bugle.jobs;
begin
  update bugle.jobs_live j set first_started_at = now() - interval '1 day',
    started_at = now() - interval '1 day' where j.id = v_held.id;
  perform test.give_back(v_worker, v_held);
  v_held := test.running(v_worker, v_held.id);

  v_job := test.job(v_held.id);
  perform test.equal(v_held.claim, 2::bigint, 'the claim number rises');
  perform test.equal(v_job.first_started_at, now() - interval '1 day', 'first_started_at');
  assert v_job.started_at >= now(), 'started_at is new';
end
$$;

rollback;
