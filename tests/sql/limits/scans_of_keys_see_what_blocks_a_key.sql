begin;

-- Behind hundreds of one key, so that claims hop from key to key.
create function pg_temp.crowd(p_queue text) returns void language sql as $$
  insert into bugle.jobs (command, queue, order_key) select 'noop', p_queue, 'crowd' from generate_series(1, 600)
$$;

create function pg_temp.claimed(p_worker bigint, p_queue text) returns text[] language sql as $$
  select array_agg(j.payload ->> 'name' order by j.payload ->> 'name')
  from test.claim(p_worker, 20, p_queue) c
    join bugle.jobs j on j.id = c.id
  where j.order_key <> 'crowd'
$$;

do $$
declare
  v_worker constant bigint := test.register(p_queues => '{hop block,hop pass}');
  v_queue text;
  v_late bigint;
  v_held bugle.held_job;
begin
  perform bugle.set_limits('hop pass', p_order_on_retry => 'pass');
  foreach v_queue in array array['hop block', 'hop pass'] loop
    -- of the key "late" the second runs first, and is retried when the first comes
    v_late := bugle.enqueue('noop', '{"name": "late 1"}', v_queue, p_run_at => now() + interval '1 hour',
      p_order_key => 'late');
    perform bugle.enqueue('noop', '{"name": "late 2"}', v_queue, p_order_key => 'late');
    perform bugle.enqueue('noop', '{"name": "retried 1"}', v_queue, p_order_key => 'retried');
    for v_held in select c.id, c.claim from test.claim(v_worker, 2, v_queue) c loop
      perform test.fail(v_worker, v_held);
    end loop;
    perform pg_temp.crowd(v_queue);
    perform bugle.enqueue('noop', '{"name": "retried 2"}', v_queue, p_order_key => 'retried');
    perform bugle.enqueue('noop', '{"name": "retried 3"}', v_queue, p_order_key => 'retried');
    perform bugle.enqueue('noop', '{"name": "plain 1"}', v_queue, p_order_key => 'plain');
    perform bugle.enqueue('noop', '{"name": "plain 2"}', v_queue, p_order_key => 'plain');
    perform bugle.reschedule(v_late, now());

    perform test.equal(pg_temp.claimed(v_worker, v_queue),
      case v_queue when 'hop block' then array['late 1', 'plain 1'] else array['late 1', 'plain 1', 'retried 2'] end,
      format('%s: a later one is not in the way, an earlier one is unless it may be passed', v_queue));
    perform test.equal(pg_temp.claimed(v_worker, v_queue), null::text[],
      format('%s: and no second of a key that runs', v_queue));
  end loop;
end
$$;

do $$
declare
  v_worker constant bigint := test.register('{noop,other}', '{hop commands,hop turns}');
begin
  perform bugle.set_limits('hop commands', p_max_running_per_key => 1);
  insert into bugle.jobs (command, queue, limit_key) select 'noop', 'hop commands',
    'crowd' from generate_series(1, 600);
  insert into bugle.jobs (command, queue, limit_key, priority)
  select case when i % 2 = 0 then 'noop' else 'other' end, 'hop commands', 'key ' || i % 5,
    -i from generate_series(0, 19) i;
  perform test.equal(
    array(select format('%s %s', j.limit_key, j.priority) from test.claim(v_worker, 20, 'hop commands') c
      join bugle.jobs j on j.id = c.id order by 1),
    '{crowd 0,key 0 -15,key 1 -16,key 2 -17,key 3 -18,key 4 -19}'::text[],
      'commands share the keys, the first of each key starts');
  perform test.equal((select count(*) from test.claim(v_worker, 20, 'hop commands')), 0::bigint, 'and no other');

  insert into bugle.jobs (command, queue, fair_key)
  select case when i % 3 = 0 then 'noop' else 'other' end, 'hop turns', 'key ' || i % 4 from generate_series(0, 39) i;
  for v_round in 1 .. 10 loop
    perform test.equal(
      array(select j.fair_key from test.claim(v_worker, 4, 'hop turns') c join bugle.jobs j on j.id = c.id order by 1),
      '{key 0,key 1,key 2,key 3}'::text[], 'one of each fair key a round, whatever their commands');
  end loop;
end
$$;

rollback;
