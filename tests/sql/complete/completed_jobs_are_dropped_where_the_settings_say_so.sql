begin;

update bugle.settings set keep_completed = false;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker);
  v_failed constant bugle.held_job := test.running(v_worker);
begin
  perform test.equal(test.complete(v_worker, v_held), null, 'the verdict');
  perform test.equal((select count(*) from bugle.jobs j where j.id = v_held.id), 0::bigint, 'rows left');
  perform test.equal(test.complete(v_worker, v_held), 'gone', 'said again');

  perform test.fail(v_worker, v_failed, p_retryable => false);
  perform test.equal((test.job(v_failed.id)).state, 'failed', 'failed jobs are kept');
end
$$;

rollback;
