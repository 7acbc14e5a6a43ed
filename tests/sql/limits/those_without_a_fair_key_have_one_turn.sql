begin;

create function pg_temp.without(p_worker bigint, p_slots integer, p_queue text) returns bigint language sql as $$
  select count(*) filter (where j.fair_key is null) from test.claim(p_worker, p_slots, p_queue) c
    join bugle.jobs j on j.id = c.id
$$;

do $$
declare
  v_worker constant bigint := test.register(p_queues => '{fair order,fair held}');
  v_without bigint := 0;
begin
  -- many keys: two claims of 30 go round 40 of them and come by those without once
  insert into bugle.jobs (command, queue, fair_key) select 'noop', 'fair order',
    'K' || i % 40 from generate_series(1, 200) i;
  insert into bugle.jobs (command, queue, order_key) select 'noop', 'fair order',
    'o' || i from generate_series(1, 60) i;
  for v_claim in 1 .. 2 loop
    v_without := v_without + pg_temp.without(v_worker, 30, 'fair order');
  end loop;
  perform test.equal(v_without, 1::bigint, 'one turn a round, whatever other keys they have');

  -- few keys that can start: several of each
  insert into bugle.jobs (command, queue, fair_key, order_key) select 'noop', 'fair held', 'B' || i,
    'same' from generate_series(1, 20) i;
  perform test.equal((select count(*) from test.claim(v_worker, 20, 'fair held')), 1::bigint, 'one of an order key');
  insert into bugle.jobs (command, queue, fair_key) select 'noop', 'fair held', 'A' || i from generate_series(1, 10) i,
    generate_series(1, 50);
  insert into bugle.jobs (command, queue, order_key) select 'noop', 'fair held', 'o' || i from generate_series(1, 60) i;
  v_without := pg_temp.without(v_worker, 22, 'fair held');
  perform test.equal(v_without between 1 and 2, true, format('as many turns as others, not %s', v_without));
end
$$;

rollback;
