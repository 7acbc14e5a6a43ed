begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_stale bugle.claimed_job;
  v_again bugle.claimed_job;
begin
  perform bugle.enqueue('noop');
  v_stale := (select c from test.claim(v_worker) c);
  perform bugle.give_back(v_worker, test.nonce(v_worker), array[(v_stale.id, v_stale.claim)::bugle.held_job]);
  v_again := (select c from test.claim(v_worker) c);
  perform test.equal(v_again.id, v_stale.id, 'the same job');

  perform test.equal((
      select v.verdict
      from bugle.complete_at(v_worker, test.nonce(v_worker), array[v_stale.id], array[v_stale.claim], '{}',
        array[v_again.address]) v),
    'fenced', 'the older claim, at the newer address');
  perform test.equal((test.job(v_stale.id)).state, 'running', 'it goes on');
end
$$;

rollback;
