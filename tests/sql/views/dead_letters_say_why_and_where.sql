begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_failed constant bugle.held_job := test.running(v_worker, bugle.enqueue('noop', '{"a": 1}'));
  v_given_up constant bugle.held_job := test.running(v_worker);
begin
  perform test.fail(v_worker, v_failed, 'boom', 'e1', p_retryable => false);
  perform test.cancel_held(v_worker, v_given_up, 'no');

  perform test.equal((select jsonb_agg(to_jsonb(d) - 'started_at') from bugle.dead_letters d),
    jsonb_build_array(jsonb_build_object(
    'id', v_failed.id, 'command', 'noop', 'queue', 'default', 'payload', '{"a": 1}'::jsonb, 'reason', 'not_retryable',
      'last_error', 'boom',
    'last_error_code', 'e1', 'attempt', 1, 'crashes', 0, 'worker', v_worker, 'worker_name', 'tester', 'host', 'host-1',
    'created_at', now(), 'finished_at', now(), 'failed_step', null)), 'dead letters');
  assert (select d.started_at >= now() from bugle.dead_letters d), 'it says when the last attempt began';
end
$$;

rollback;
