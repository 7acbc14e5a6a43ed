begin;

-- a job may have all three keys: it starts when none of them is in the way
do $$
declare
  v_worker constant bigint := test.register(p_queues => '{both}');
  v_look boolean;
begin
  perform bugle.set_limits('both', p_max_running => 4, p_max_running_per_key => 2);
  insert into bugle.jobs (command, queue, order_key, limit_key, fair_key)
  select 'noop', 'both', format('o%s', i % 7), format('l%s', i % 3), format('f%s', i % 2) from generate_series(1, 70) i;

  for v_round in 1..100 loop
    exit when not exists (select from bugle.jobs_live j where j.queue = 'both');
    v_look := exists (select from bugle.queues_with_work(v_worker, '{both}'));
    perform test.equal(exists (select from test.claim(v_worker, 10, 'both')), v_look,
      'a claim finds what the look before it saw');
    perform test.equal((select count(*) between 1 and 4 from bugle.jobs_live j where j.state = 'running'
      and j.queue = 'both'), true,
      'never none, never more than four');
    perform test.equal((select max(r.n) <= 2 from (select count(*) as n from bugle.jobs_live j
      where j.state = 'running' and j.queue = 'both' group by j.limit_key) r),
      true, 'two of each limit key');
    perform test.equal((select max(r.n) from (select count(*) as n from bugle.jobs_live j where j.state = 'running'
      and j.queue = 'both' group by j.order_key) r),
      1::bigint, 'one of each order key');
    perform test.complete(v_worker, (
      select (j.id, j.claim)::bugle.held_job from bugle.jobs_live j where j.state = 'running' and j.queue = 'both'
        order by random() limit 1));
  end loop;
  perform test.equal((select count(*) from bugle.jobs j where j.queue = 'both' and j.state = 'completed'), 70::bigint,
    'all are done');
  perform test.equal((
    select bool_and(o.is_ordered)
    from (
      select j.started_at > lag(j.started_at) over (partition by j.order_key order by j.id) as is_ordered
        from bugle.jobs j where j.queue = 'both') o),
    true, 'each key in order');
end
$$;

rollback;
