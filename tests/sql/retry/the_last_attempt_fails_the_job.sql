begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job := test.running(v_worker, bugle.enqueue('noop', p_max_attempts => 2));
begin
  perform test.fail(v_worker, v_held, p_retry_after => 0);
  perform test.equal((test.job(v_held.id)).state, 'retrying', 'after the first');
  perform bugle.promote();
  v_held := test.running(v_worker, v_held.id);
  perform test.fail(v_worker, v_held, 'boom again');

  perform test.equal(concat_ws(', ', (test.job(v_held.id)).state, (test.job(v_held.id)).reason,
    (test.job(v_held.id)).last_error),
    'failed, attempts_exhausted, boom again', 'after the second');
end
$$;

rollback;
