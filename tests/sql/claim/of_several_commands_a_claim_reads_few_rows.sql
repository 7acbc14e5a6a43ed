begin;

do $$
declare
  v_worker constant bigint := test.register('{noop,other,third}');
  v_before bigint;
  v_read bigint;
begin
  -- plans are made while there is next to nothing
  insert into bugle.jobs (command) select 'noop' from generate_series(1, 3);
  for n in 1..7 loop
    perform count(*) from test.claim(v_worker, 1);
  end loop;

  insert into bugle.jobs (command) select 'noop' from generate_series(1, 5000);
  v_before := (select t.idx_tup_fetch + t.seq_tup_read from pg_stat_xact_user_tables t
    where t.relid = 'bugle.jobs_live'::regclass);
  perform test.equal((select count(*) from test.claim(v_worker, 20)), 20::bigint, 'where only one of them waits');
  v_read := (select t.idx_tup_fetch + t.seq_tup_read - v_before from pg_stat_xact_user_tables t
    where t.relid = 'bugle.jobs_live'::regclass);
  assert v_read < 200, format('a claim of 20 read %s rows where one command waits', v_read);

  insert into bugle.jobs (command, priority) select 'other', -1 from generate_series(1, 5);
  insert into bugle.jobs (command) select 'third' from generate_series(1, 5000);
  v_before := (select t.idx_tup_fetch + t.seq_tup_read from pg_stat_xact_user_tables t
    where t.relid = 'bugle.jobs_live'::regclass);
  perform test.equal((
      select string_agg(x.command || ' ' || x.count, ', ' order by x.command)
      from (
        select c.command, count(*) from test.claim(v_worker, 20) c group by c.command) x),
    'noop 15, other 5', 'the first by priority and id, of all three');
  v_read := (select t.idx_tup_fetch + t.seq_tup_read - v_before from pg_stat_xact_user_tables t
    where t.relid = 'bugle.jobs_live'::regclass);
  assert v_read < 300, format('a claim of 20 read %s rows where three commands wait', v_read);
end
$$;

rollback;
