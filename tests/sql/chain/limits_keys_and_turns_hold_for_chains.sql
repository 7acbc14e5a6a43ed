begin;

do $$
declare
  v_worker bigint;
  v_lacking bigint;
  v_first constant bigint := bugle.enqueue('chain', p_queue => 'steps_ordered', p_steps => '{a,b}', p_order_key => 'k');
  v_second constant bigint := bugle.enqueue('chain', p_queue => 'steps_ordered', p_steps => '{a,b}',
    p_order_key => 'k');
  v_plain constant bigint := bugle.enqueue('a', p_queue => 'steps_ordered', p_order_key => 'k');
  v_held bugle.held_job;
begin
  insert into bugle.queues (name, max_running) values ('steps_narrow', 1);
  perform bugle.enqueue('chain', p_queue => 'steps_narrow', p_steps => '{a,b}') from generate_series(1, 2);

  v_lacking := test.register('{b,chain}', '{steps_ordered,steps_narrow}');
  perform test.equal((select count(*) from test.claim(v_lacking, 5, 'steps_ordered')), 0::bigint,
    'not by one that lacks a step');
  perform test.equal((select count(*) from test.claim(v_lacking, 5, 'steps_narrow')), 0::bigint,
    'nor from a queue with a limit');
  perform test.equal((select count(*) from bugle.queues_with_work(v_lacking, '{steps_ordered,steps_narrow}')),
    0::bigint,
    'nor does it see them');

  v_worker := test.register('{a,b}', '{steps_ordered,steps_narrow}');
  perform test.equal((select array_agg(l.queue order by l.queue)
    from bugle.queues_with_work(v_worker, '{steps_ordered,steps_narrow}') l (queue)),
      '{steps_narrow,steps_ordered}'::text[],
    'seen');
  perform test.equal((select count(*) from test.claim(v_worker, 5, 'steps_narrow')), 1::bigint, 'one at a time');
  select c.id, c.claim into v_held from test.claim(v_worker, 5, 'steps_ordered') c;
  perform test.equal(v_held.id, v_first, 'the first of the key');
  perform test.equal((select count(*) from test.claim(v_worker, 5, 'steps_ordered')), 0::bigint, 'the others wait');
  perform test.start_step(v_worker, v_held);
  perform test.finish_step(v_worker, v_held, 1);
  perform test.equal((select count(*) from test.claim(v_worker, 5, 'steps_ordered')), 0::bigint,
    'also between its steps');
  perform test.finish_step(v_worker, v_held, 2);
  perform test.equal((select c.id from test.claim(v_worker, 5, 'steps_ordered') c), v_second, 'then the next');
end
$$;

rollback;
