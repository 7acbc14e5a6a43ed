begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job := test.running(v_worker);
  v_job bugle.jobs;
begin
  perform test.fail(v_worker, v_held, p_retryable => false);
  perform test.equal(bugle.restart(v_held.id, 'the bug is fixed'), 'ready', 'restart');

  v_job := test.job(v_held.id);
  perform test.equal(v_job.attempt, 0, 'attempt');
  perform test.equal(v_job.claim, 1::bigint, 'claim numbers only rise');
  perform test.equal(v_job.last_error, 'boom', 'the last error is kept');
  perform test.equal((select count(*) from bugle.attempts a where a.job = v_held.id), 1::bigint, 'attempts kept');
  perform test.equal((select c.note from bugle.changes c where c.job = v_held.id), 'the bug is fixed', 'the note');

  v_held := test.running(v_worker, v_held.id);
  perform test.equal(v_held.claim, 2::bigint, 'the next claim');
  perform test.complete(v_worker, v_held);
  perform test.refused(format('select bugle.restart(%s)', v_held.id), 'JB031');
end
$$;

rollback;
