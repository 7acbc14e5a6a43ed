begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_other constant bigint := test.register();
  v_good constant bugle.held_job := test.running(v_worker);
  v_foreign constant bugle.held_job := test.running(v_other);
  v_twice constant bugle.held_job := test.running(v_worker);
  v_ready constant bigint := bugle.enqueue('noop');
  v_verdicts text;
begin
  perform test.complete(v_worker, v_twice);

  select string_agg(concat_ws(' ', v.id, v.claim, v.verdict), ', ' order by v.id) into v_verdicts
  from bugle.complete(v_worker, test.nonce(v_worker), array[
    (v_ready, 1, null), (v_twice.id, 1, null), (v_foreign.id, 1, null), (v_good.id, 1, null), (v_good.id, 1, null),
    (999999999, 1, null)]::bugle.finished_job[]) v;

  perform test.equal(v_verdicts, format('%s 1 fenced, %s 1 repeated, %s 1 fenced, 999999999 1 gone', v_foreign.id,
    v_twice.id, v_ready), 'verdicts');
  perform test.equal((test.job(v_good.id)).state, 'completed', 'the good one');
  perform test.equal((test.job(v_foreign.id)).state, 'running', 'another worker''s');
  perform test.equal((test.job(v_ready)).state, 'ready', 'one that nobody holds');
  perform test.equal((select count(*) from bugle.complete(v_worker, test.nonce(v_worker), '{}')), 0::bigint,
    'an empty batch');
end
$$;

rollback;
