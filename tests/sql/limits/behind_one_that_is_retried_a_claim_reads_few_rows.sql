begin;

do $$
declare
  v_worker constant bigint := test.register(p_queues => '{held}');
  v_held bugle.held_job;
  v_before bigint;
  v_read bigint;
begin
  insert into bugle.jobs (command, queue, order_key) select 'noop', 'held', 'k' from generate_series(1, 5000);
  insert into bugle.jobs (command, queue, order_key) values ('noop', 'held', 'far');
  select c.id, c.claim into v_held from test.claim(v_worker, 1, 'held') c;
  perform test.fail(v_worker, v_held);
  v_before := (select t.idx_tup_fetch from pg_stat_xact_user_tables t where t.relid = 'bugle.jobs_live'::regclass);

  perform test.equal(array(select (test.job(c.id)).order_key from test.claim(v_worker, 20, 'held') c), '{far}'::text[],
    'the others wait');

  v_read := (select t.idx_tup_fetch - v_before from pg_stat_xact_user_tables t
    where t.relid = 'bugle.jobs_live'::regclass);
  assert v_read < 1000, format('a claim of 20 read %s rows', v_read);
end
$$;

rollback;
