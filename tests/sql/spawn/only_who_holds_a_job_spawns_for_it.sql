begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_other constant bigint := test.register();
  v_held bugle.held_job := test.running(v_worker);
  v_call constant text := 'select * from bugle.spawn(%s, %L, (%s, %s)::bugle.held_job, %L)';
begin
  perform test.equal((select v.verdict from bugle.spawn(v_other, test.nonce(v_other), v_held,
    '[{"command": "noop"}]') v), 'fenced', 'another worker');
  perform test.equal((select v.verdict from bugle.spawn(v_worker, test.nonce(v_worker),
    (v_held.id, v_held.claim - 1)::bugle.held_job, '[{"command": "noop"}]') v), 'fenced', 'an older claim');
  perform test.equal((select v.verdict from bugle.spawn(v_worker, test.nonce(v_worker), (-1, 1)::bugle.held_job,
    '[{"command": "noop"}]') v), 'gone', 'no such job');
  perform test.refused(format(v_call, v_worker, gen_random_uuid(), v_held.id, v_held.claim, '[{"command": "noop"}]'),
    'JB010');
  perform test.refused(format(v_call, v_worker, test.nonce(v_worker), v_held.id, v_held.claim, '[]'), 'JB040',
    'children must be%');
  perform test.refused(format(v_call, v_worker, test.nonce(v_worker), v_held.id, v_held.claim, '{}'), 'JB040',
    'children must be%');
  perform test.refused(format(v_call, v_worker, test.nonce(v_worker), v_held.id, v_held.claim, '7'), 'JB040',
    'children must be%');
  perform test.refused(format(v_call, v_worker, test.nonce(v_worker), v_held.id, v_held.claim,
    '[{"command": "noop"}, {"command": ""}]'), 'JB001', 'job ''2''%column "command"%');
  perform test.equal((test.job(v_held.id)).state, 'running', 'it runs on');
end
$$;

rollback;
