begin;

do $$
declare
  v_lost constant bigint := test.register('{a,b,c}');
  v_held bugle.held_job := test.running(v_lost, test.chain());
  v_other bigint;
begin
  perform test.start_step(v_lost, v_held);
  perform test.finish_step(v_lost, v_held, 1, '{"x": 1}');
  perform test.dies(v_lost);
  v_other := test.register('{b,c}');
  update bugle.settings set lost_grace = '0';
  perform bugle.note_lost(v_other);
  perform bugle.rescue();
  perform test.equal(test.steps(v_held.id), 'a done, b interrupted, c pending', 'what the crash left');

  v_held := test.running(v_other, v_held.id);
  perform test.equal((select format('%s %s', n.position, n.context)
    from bugle.start_step(v_other, test.nonce(v_other), v_held) n), '2 {"x": 1}', 'it goes on');
  perform test.equal(test.steps(v_held.id), 'a done, b running, c pending', 'steps');
  perform test.equal((select s.attempts from bugle.steps s where s.job = v_held.id and s.position = 2), 2,
    'the crash was a try');
end
$$;

rollback;
