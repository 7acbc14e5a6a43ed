begin;

analyze bugle.jobs_live;

-- Plans are kept by the session. Made over a handful of rows, they must not read everything when there are thousands.
do $$
declare
  v_worker constant bigint := test.register(p_slots => 500);
  v_held bugle.held_job[];
  v_before bigint;
  v_claimed bigint;
  v_completed bigint;
begin
  discard plans;
  for i in 1..8 loop
    perform test.complete(v_worker, test.running(v_worker));
  end loop;
  insert into bugle.jobs (command) select 'noop' from generate_series(1, 5000);

  v_before := (select t.idx_tup_fetch from pg_stat_xact_user_tables t where t.relid = 'bugle.jobs_live'::regclass);
  v_held := array(select (c.id, c.claim)::bugle.held_job from test.claim(v_worker, 500) c);
  v_claimed := (select t.idx_tup_fetch - v_before from pg_stat_xact_user_tables t
    where t.relid = 'bugle.jobs_live'::regclass);
  perform bugle.complete(v_worker, test.nonce(v_worker),
    array(select (h.id, h.claim, null)::bugle.finished_job from unnest(v_held) h));
  v_completed := (select t.idx_tup_fetch - v_before - v_claimed from pg_stat_xact_user_tables t
    where t.relid = 'bugle.jobs_live'::regclass);

  perform test.equal(cardinality(v_held), 500, 'claimed');
  assert v_claimed < 2000, format('a claim of 500 read %s rows', v_claimed);
  assert v_completed < 2000, format('a completion of 500 read %s rows', v_completed);
end
$$;

rollback;
