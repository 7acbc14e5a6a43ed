begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_retried constant bugle.held_job := test.running(v_worker);
  v_last constant bugle.held_job := test.running(v_worker, bugle.enqueue('noop', p_max_attempts => 1));
begin
  perform test.fail(v_worker, v_retried, 'took too long', 'timeout');
  perform test.fail(v_worker, v_last, 'took too long', 'timeout');

  perform test.equal((test.job(v_retried.id)).state, 'retrying', 'with attempts left');
  perform test.equal((test.job(v_last.id)).reason, 'timeout', 'without');
end
$$;

rollback;
