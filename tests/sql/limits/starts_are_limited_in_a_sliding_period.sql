begin;

do $$
declare
  v_worker constant bigint := test.register(p_queues => '{paced,keyed}');
begin
  perform bugle.set_limits('paced', p_max_starts => 3, p_starts_period => '1 hour');
  perform bugle.enqueue('noop', p_queue => 'paced') from generate_series(1, 10);

  perform test.equal((select count(*) from test.claim(v_worker, 2, 'paced')), 2::bigint, 'two of three');
  perform test.equal((select count(*) from test.claim(v_worker, 2, 'paced')), 1::bigint, 'one is left');
  perform test.equal((select count(*) from test.claim(v_worker, 2, 'paced')), 0::bigint, 'none is left');
  perform test.equal((select t.recheck_at between now() + interval '59 minutes' and now() + interval '61 minutes'
    from bugle.claim_positions t where t.queue = 'paced'), true,
    'it is noted when to look again');
  perform test.equal(bugle.next_due_seconds() between 3500 and 3600, true, 'the keeper knows');
  perform test.equal((select count(*) from bugle.queues_with_work(v_worker, '{paced}')), 0::bigint,
    'until then nothing is there');

  -- the first claim leaves the period, the second does not
  update bugle.starts s set started_at = s.started_at - interval '1 hour' where s.queue = 'paced' and s.total = 2;
  perform test.equal((select count(*) from test.claim(v_worker, 10, 'paced')), 2::bigint, 'as many as have left it');
  update bugle.claim_positions t set recheck_at = clock_timestamp() where t.queue = 'paced';
  perform bugle.promote();
  perform test.equal((select t.recheck_at from bugle.claim_positions t where t.queue = 'paced'), null::timestamptz,
    'the keeper rang');
  perform test.equal((select count(*) from bugle.queues_with_work(v_worker, '{paced}')), 1::bigint,
    'a worker that polls now must claim, or the next poll time is not recorded');

  perform bugle.set_limits('keyed', p_max_starts_per_key => 2, p_starts_per_key_period => '1 hour');
  insert into bugle.jobs (command, queue, limit_key)
  select 'noop', 'keyed', k.key from (values ('a'), ('b')) k (key), generate_series(1, 3);
  perform test.equal((select count(*) from test.claim(v_worker, 10, 'keyed')), 4::bigint, 'two of each key');
  perform test.equal((select count(*) from test.claim(v_worker, 10, 'keyed')), 0::bigint, 'then none');
  update bugle.starts s set started_at = s.started_at - interval '1 hour' where s.queue = 'keyed' and s.key = 'b';
  perform test.equal(array(select j.limit_key from bugle.jobs j join test.claim(v_worker, 10, 'keyed') c using (id)),
    '{b}'::text[],
    'a key that has room again');

  perform bugle.prune();
  perform test.equal((select count(*) from bugle.starts s where s.queue in ('paced', 'keyed')
    and s.started_at < now() - interval '1 hour'), 0::bigint,
    'what has left the period is pruned');
end
$$;

rollback;
