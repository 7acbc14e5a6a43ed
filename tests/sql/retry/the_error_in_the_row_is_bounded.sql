begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_retried constant bugle.held_job := test.running(v_worker);
  v_failed constant bugle.held_job := test.running(v_worker);
begin
  perform test.fail(v_worker, v_retried, repeat('ü', 20000), repeat('c', 200));
  perform test.fail(v_worker, v_failed, repeat('ü', 20000), repeat('c', 200), p_retryable => false);

  perform test.equal(array[length((test.job(v_retried.id)).last_error),
    length((test.job(v_retried.id)).last_error_code)], '{10000,100}'::integer[], 'retrying');
  perform test.equal(array[length((test.job(v_failed.id)).last_error),
    length((test.job(v_failed.id)).last_error_code)], '{10000,100}'::integer[], 'failed');
end
$$;

rollback;
