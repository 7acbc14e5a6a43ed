begin;

do $$
declare
  v_policy constant bugle.retry_policies := test.policy('exponential', p_delay => '7 seconds', p_factor => 3);
  v_worker constant bigint := test.register();
  v_held bugle.held_job := test.running(v_worker, bugle.enqueue('noop', p_retry_policy => v_policy.name));
  v_job bugle.jobs;
begin
  perform test.equal(test.fail(v_worker, v_held, 'boom', 'e1'), null, 'the verdict');
  v_job := test.job(v_held.id);
  perform test.equal(concat_ws(' ', v_job.state, v_job.attempt, v_job.last_error, v_job.last_error_code),
    'retrying 1 boom e1', 'the row');
  perform test.equal(v_job.run_at, now() + interval '7 seconds', 'after the first failure');
  assert v_job.finished_at is null and v_job.reason is null, 'it has not ended';

  update bugle.jobs_live j set run_at = now() where j.id = v_held.id;
  perform bugle.promote();
  v_held := test.running(v_worker, v_held.id);
  perform test.fail(v_worker, v_held);
  perform test.equal((test.job(v_held.id)).run_at, now() + interval '21 seconds', 'after the second');
end
$$;

rollback;
