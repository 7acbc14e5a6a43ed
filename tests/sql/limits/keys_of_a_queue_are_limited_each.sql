begin;

do $$
declare
  v_worker constant bigint := test.register(p_queues => '{tenants}');
  v_ids bigint[];
begin
  perform bugle.set_limits('tenants', p_max_running_per_key => 2);
  insert into bugle.jobs (command, queue, limit_key) select 'noop', 'tenants', 'large' from generate_series(1, 3000);
  insert into bugle.jobs (command, queue, limit_key) select 'noop', 'tenants',
    'small ' || i from generate_series(1, 5) i;
  insert into bugle.jobs (command, queue) select 'noop', 'tenants' from generate_series(1, 4) i;

  v_ids := array(select c.id from test.claim(v_worker, 20, 'tenants') c);

  perform test.equal((select count(*) from bugle.jobs j where j.id = any (v_ids) and j.limit_key = 'large'), 2::bigint,
    'two of the key that has thousands');
  perform test.equal((select count(*) from bugle.jobs j where j.id = any (v_ids) and j.limit_key like 'small%'),
    5::bigint,
    'those behind them are found');
  perform test.equal((select count(*) from bugle.jobs j where j.id = any (v_ids) and j.limit_key is null), 4::bigint,
    'those without a key are not limited');
  perform test.equal((select count(*) from test.claim(v_worker, 20, 'tenants')), 0::bigint, 'the rest waits');
  perform test.equal((select count(*) from bugle.queues_with_work(v_worker, '{tenants}')), 0::bigint,
    'and a poll does not find it');
end
$$;

rollback;
