begin;

do $$
declare
  v_worker constant bigint := test.register('{c,z}');
  v_fetched bigint;
  v_from constant bigint := pg_stat_get_xact_tuples_returned('bugle.jobs_live_claimable'::regclass);
  v_scans constant bigint := pg_stat_get_xact_numscans('bugle.jobs_live'::regclass);
begin
  insert into bugle.jobs (command, steps)
  select 'import', case when n % 2 = 0 then '{a,c}' else '{b,c}' end::text[]
  from generate_series(1, 2000) n;
  insert into bugle.jobs (command, steps) select 'import', '{z,c}' from generate_series(1, 5);

  perform test.equal((select count(*) from test.claim(v_worker, 3)), 3::bigint, 'what it can run');
  perform test.equal((select count(*) from bugle.queues_with_work(v_worker, '{default}')), 1::bigint, 'what it sees');
  perform test.equal((select count(*) from test.claim(v_worker, 10)), 2::bigint, 'the rest');
  perform test.equal((select count(*) from bugle.queues_with_work(v_worker, '{default}')), 0::bigint,
    'nothing is left for it');
  perform test.equal((select count(*) from bugle.unserved u), 2::bigint, 'two ends that nobody serves');
  v_fetched := pg_stat_get_xact_tuples_returned('bugle.jobs_live_claimable'::regclass) - v_from;
  assert v_fetched < 50, format('%s rows were looked at', v_fetched);
  perform test.equal(pg_stat_get_xact_numscans('bugle.jobs_live'::regclass), v_scans, 'the whole table was read');
end
$$;

rollback;
