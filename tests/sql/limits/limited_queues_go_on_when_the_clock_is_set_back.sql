begin;

do $$
declare
  v_worker constant bigint := test.register(p_queues => '{paced}');
begin
  perform bugle.set_limits('paced', p_max_starts => 3, p_starts_period => '1 minute');
  perform bugle.enqueue('noop', p_queue => 'paced') from generate_series(1, 10);
  perform test.equal((select count(*) from test.claim(v_worker, 2, 'paced')), 2::bigint, 'two of three');
  perform bugle.run_maintenance(v_worker, false);
  perform test.clock_steps_back('1 hour');
  -- before the keeper has noticed
  perform test.equal((select count(*) from test.claim(v_worker, 10, 'paced')), 1::bigint, 'the limit holds meanwhile');
  perform test.equal((select count(*) from test.claim(v_worker, 10, 'paced')), 0::bigint, 'none is left');

  perform bugle.run_maintenance(v_worker, false);

  perform test.equal((select count(*) from test.claim(v_worker, 10, 'paced')), 0::bigint, 'the limit holds afterwards');
  assert (select t.recheck_at < now() + interval '2 minutes' from bugle.claim_positions t where t.queue = 'paced'),
    'it is looked for room within the period';
  -- the period passes
  update bugle.starts s set started_at = s.started_at - interval '70 seconds';
  perform test.equal((select count(*) from test.claim(v_worker, 10, 'paced')), 3::bigint,
    'three more in the next period');
end
$$;

rollback;
