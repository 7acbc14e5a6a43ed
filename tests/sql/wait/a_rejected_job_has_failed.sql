begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker);
  v_job bugle.jobs;
begin
  perform test.wait(v_worker, v_held);

  perform bugle.reject(v_held.id, repeat('x', 20000));

  v_job := test.job(v_held.id);
  perform test.equal(concat_ws(' ', v_job.state, v_job.reason, v_job.last_error_code), 'failed rejected rejected',
    'the row');
  perform test.equal(v_job.last_error, repeat('x', 10000), 'the error is bounded');
end
$$;

rollback;
