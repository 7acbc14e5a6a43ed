begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b}');
  v_held constant bugle.held_job := test.running(v_worker, test.chain('{a,b}'));
begin
  perform test.start_step(v_worker, v_held);
  perform bugle.begin_step(v_worker, test.nonce(v_worker), v_held, 'charge', 1);
  perform bugle.end_step(v_worker, test.nonce(v_worker), v_held, 'charge', 1, '1');
  perform test.finish_step(v_worker, v_held, 1);
  perform test.equal((select b.is_done from bugle.begin_step(v_worker, test.nonce(v_worker), v_held, 'charge', 2) b),
    false, 'not the same');
  perform test.equal((select string_agg(format('%s %s %s', s.position, s.name, s.within), ', ' order by s.position)
    from bugle.steps s),
    '1 a , 2 b , 3 charge 1, 4 charge 2', 'steps');
end
$$;

rollback;
