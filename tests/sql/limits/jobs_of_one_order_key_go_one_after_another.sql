begin;

do $$
declare
  v_worker constant bigint := test.register(p_queues => '{ordered}');
  v_ids bigint[];
  v_held bugle.held_job;
begin
  -- priority 9 first by id: the order of a key is that of its ids
  insert into bugle.jobs (command, queue, order_key, priority) values ('noop', 'ordered', 'k', 9),
    ('noop', 'ordered', 'k', 0), ('noop', 'ordered', 'k', 0);
  insert into bugle.jobs (command, queue, order_key) select 'noop', 'ordered', 'many' from generate_series(1, 3000);
  insert into bugle.jobs (command, queue, order_key) select 'noop', 'ordered', 'far ' || i from generate_series(1, 3) i;
  insert into bugle.jobs (command, queue) values ('noop', 'ordered');
  v_ids := array(select j.id from bugle.jobs j where j.queue = 'ordered' and j.order_key = 'k' order by j.id);

  perform test.equal(
    array(select coalesce(j.order_key, '-') from bugle.jobs j join test.claim(v_worker, 20, 'ordered') c using (id)
      order by 1),
    '{-,far 1,far 2,far 3,k,many}'::text[], 'one of each key, also behind thousands');
  perform test.equal((select count(*) from test.claim(v_worker, 20, 'ordered')), 0::bigint, 'no other while those run');
  perform test.equal((select count(*) from bugle.queues_with_work(v_worker, '{ordered}')), 0::bigint,
    'and nothing to look for');
  perform test.equal((test.job(v_ids[1])).state, 'running', 'the first by id, whatever its priority');

  -- across retries
  perform test.fail(v_worker, (v_ids[1], 1));
  perform test.equal((select count(*) from test.claim(v_worker, 20, 'ordered')), 0::bigint,
    'behind one that is retried the others wait');
  perform bugle.reschedule(v_ids[1], now());
  select c.id, c.claim into v_held from test.claim(v_worker, 20, 'ordered') c;
  perform test.equal(v_held.id, v_ids[1], 'it comes first again');
  perform test.complete(v_worker, v_held);
  select c.id, c.claim into v_held from test.claim(v_worker, 20, 'ordered') c;
  perform test.equal(v_held.id, v_ids[2], 'then the next');

  -- a restarted earlier one waits for what runs, then comes before what does not
  perform bugle.cancel(v_ids[2]);
  select c.id, c.claim into v_held from test.claim(v_worker, 20, 'ordered') c;
  perform test.equal(v_held.id, v_ids[3], 'a cancelled one is not in the way');
  perform bugle.restart(v_ids[2]);
  perform test.equal((select count(*) from test.claim(v_worker, 20, 'ordered')), 0::bigint, 'never two at once');
  perform test.complete(v_worker, v_held);
  perform test.equal((select c.id from test.claim(v_worker, 20, 'ordered') c), v_ids[2], 'then the restarted one');
end
$$;

rollback;
