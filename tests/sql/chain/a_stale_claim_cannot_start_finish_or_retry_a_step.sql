begin;

do $$
declare
  v_zombie constant bigint := test.register('{a,b}');
  v_other bigint;
  v_stale constant bugle.held_job := test.running(v_zombie, test.chain('{a,b}'));
  v_held bugle.held_job;
begin
  perform test.start_step(v_zombie, v_stale);
  perform test.give_back(v_zombie, v_stale);
  v_other := test.register('{a,b}');
  v_held := test.running(v_other, v_stale.id);
  perform test.start_step(v_other, v_held);

  perform test.equal(test.finish_step(v_zombie, v_stale, 1, '{"stale": true}'), 'fenced', 'finish');
  perform test.equal((select n.verdict from bugle.start_step(v_zombie, test.nonce(v_zombie), v_stale) n), 'fenced',
    'start');
  perform test.equal((select n.verdict from bugle.retry_step(v_zombie, test.nonce(v_zombie), v_stale, 1, 1, 'x', null,
    true, null) n), 'fenced', 'retry');
  perform test.equal((select n.verdict from bugle.begin_step(v_zombie, test.nonce(v_zombie), v_stale, 'charge') n),
    'fenced', 'begin');
  perform test.equal(bugle.end_step(v_zombie, test.nonce(v_zombie), v_stale, 'charge', 0, '1'), 'fenced', 'end');
  perform test.equal((test.job(v_held.id)).context, null::jsonb, 'nothing changed');
  perform test.equal(test.finish_step(v_other, v_held, 1), null, 'the holder goes on');
  perform test.refused(format('select bugle.finish_step(%s, gen_random_uuid(), (%s, %s), 2, 1, null)', v_other,
    v_held.id, v_held.claim), 'JB010');
end
$$;

rollback;
