begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job := test.running(v_worker, bugle.enqueue('noop', p_max_attempts => 2));
begin
  perform test.fail(v_worker, v_held, repeat('x', 20000), repeat('c', 200), p_retry_after => 0);
  perform test.fail(v_worker, v_held, 'said again', 'again');
  perform bugle.promote();
  v_held := test.running(v_worker, v_held.id);
  perform test.fail(v_worker, v_held, 'boom', 'e1');

  perform test.equal((select count(*) from bugle.attempts a where a.job = v_held.id), 2::bigint, 'rows');
  perform test.equal((select to_jsonb(a) - 'started_at' from bugle.attempts a where a.job = v_held.id and a.claim = 2),
    jsonb_build_object(
    'job', v_held.id, 'claim', 2, 'attempt', 2, 'worker', v_worker, 'ended_at', now(), 'outcome', 'failed', 'times', 1,
    'command', 'noop', 'code', 'e1', 'error', 'boom'), 'the second');
  assert (select bool_and(a.started_at >= now()) from bugle.attempts a where a.job = v_held.id),
    'they say when they began';
  perform test.equal((select array[length(a.error), length(a.code)] from bugle.attempts a where a.job = v_held.id
    and a.claim = 1),
    '{10000,100}'::integer[], 'lengths are bounded');
end
$$;

rollback;
