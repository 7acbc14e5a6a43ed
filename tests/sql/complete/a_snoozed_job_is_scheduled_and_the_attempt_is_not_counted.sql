begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job := test.running(v_worker);
  v_job bugle.jobs;
begin
  perform test.equal(test.snooze(v_worker, v_held, '1 hour'), null, 'the verdict');

  v_job := test.job(v_held.id);
  perform test.equal(concat_ws(' ', v_job.state, v_job.attempt, v_job.claim), 'scheduled 0 1', 'the row');
  perform test.equal(v_job.run_at, now() + interval '1 hour', 'run_at');
  perform test.equal(test.snooze(v_worker, v_held, '2 hours'), 'repeated', 'said again');
  perform test.equal((test.job(v_held.id)).run_at, now() + interval '1 hour', 'run_at, still');
end
$$;

rollback;
