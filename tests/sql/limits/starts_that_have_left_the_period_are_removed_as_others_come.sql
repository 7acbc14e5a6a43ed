begin;

do $$
declare
  v_worker constant bigint := test.register(p_queues => '{paced}');
begin
  perform bugle.set_limits('paced', p_max_starts_per_key => 100, p_starts_per_key_period => '1 hour');
  insert into bugle.jobs (command, queue, limit_key) select 'noop', 'paced', 'a' from generate_series(1, 40);

  for v_round in 1 .. 40 loop
    perform test.equal((select count(*) from test.claim(v_worker, 1, 'paced')), 1::bigint, 'there is room');
    update bugle.starts s set started_at = s.started_at - interval '1 hour' where s.queue = 'paced';
    perform test.equal((select count(*) <= 8 from bugle.starts s where s.queue = 'paced'), true, 'few are kept');
  end loop;
end
$$;

rollback;
