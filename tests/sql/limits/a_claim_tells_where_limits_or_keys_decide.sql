begin;

do $$
declare
  v_worker constant bigint := test.register(p_queues => '{free,narrow,ordered,fair}');
begin
  perform bugle.set_limits('narrow', p_max_running => 3);
  insert into bugle.jobs (command, queue) select 'noop', q.queue from unnest('{free,narrow}'::text[]) q (queue),
    generate_series(1, 2);
  insert into bugle.jobs (command, queue, order_key) select 'noop', 'ordered', k::text from generate_series(1, 2) k;
  insert into bugle.jobs (command, queue, fair_key) select 'noop', 'fair', k::text from generate_series(1, 2) k;

  perform test.equal(array(select c.turn from test.claim(v_worker, 10, 'free') c), '{null,null}'::integer[],
    'nothing decides');
  perform test.equal(array(select c.turn from test.claim(v_worker, 10, 'narrow') c), '{0,0}'::integer[],
    'a limit does, which has no order of its own');
  perform test.equal(array(select c.turn from test.claim(v_worker, 10, 'ordered') c), '{0,0}'::integer[],
    'nor have order keys');
  perform test.equal(array(select c.turn from test.claim(v_worker, 10, 'fair') c order by c.turn), '{1,2}'::integer[],
    'fair keys have one');
end
$$;

rollback;
