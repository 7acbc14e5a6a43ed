begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_before bigint;
  v_read bigint;
begin
  insert into bugle.jobs (command, fair_key) select 'noop', 'large' from generate_series(1, 5000);
  insert into bugle.jobs (command, fair_key) select 'noop', 'small' from generate_series(1, 10);
  v_before := (select t.idx_tup_fetch from pg_stat_xact_user_tables t where t.relid = 'bugle.jobs_live'::regclass);

  perform test.equal((
      select count(*) from test.claim(v_worker, 40) c where (test.job(c.id)).fair_key = 'small'),
    10::bigint, 'of the small one among the first forty');

  v_read := (select t.idx_tup_fetch - v_before from pg_stat_xact_user_tables t
    where t.relid = 'bugle.jobs_live'::regclass);
  assert v_read < 1000, format('a claim of 40 read %s rows', v_read);
end
$$;

rollback;
