begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker);
  v_job bugle.jobs;
begin
  perform test.fail(v_worker, v_held, 'no such user', 'e404', p_retryable => false);

  v_job := test.job(v_held.id);
  perform test.equal(concat_ws(', ', v_job.state, v_job.reason, v_job.last_error, v_job.last_error_code, v_job.attempt),
    'failed, not_retryable, no such user, e404, 1', 'the row');
  perform test.equal(v_job.day, (now() at time zone 'utc')::date, 'day');
  perform test.equal(test.fail(v_worker, v_held), 'repeated', 'said again');
end
$$;

rollback;
