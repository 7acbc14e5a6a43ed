begin;

-- as after a vacuum of a drained queue: no page is left
truncate bugle.jobs_live;
analyze bugle.jobs_live;
set local plan_cache_mode = force_generic_plan;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job[];
  v_read bigint;
begin
  -- planned while the table is empty
  perform bugle.heartbeat(v_worker, test.nonce(v_worker), '{}', false);
  insert into bugle.jobs (command) select 'noop' from generate_series(1, 1000);
  v_held := array(select (c.id, c.claim)::bugle.held_job from test.claim(v_worker, 500) c);
  v_held := v_held || (1, 77)::bugle.held_job;
  v_read := (select t.seq_tup_read from pg_stat_xact_user_tables t where t.relid = 'bugle.jobs_live'::regclass);

  perform test.equal(
    (select array_agg(f.claim) from bugle.heartbeat(v_worker, test.nonce(v_worker), v_held, false) h,
      unnest(h.fenced) f), '{77}'::bigint[],
    'all but one are held');

  v_read := (select t.seq_tup_read - v_read from pg_stat_xact_user_tables t
    where t.relid = 'bugle.jobs_live'::regclass);
  assert v_read < 5000, format('a heartbeat read %s rows one after the other', v_read);
end
$$;

rollback;
