begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_other constant bigint := test.register();
  v_retried constant bugle.held_job := test.running(v_worker);
  v_failed constant bugle.held_job := test.running(v_worker);
begin
  perform bugle.fail(v_worker, test.nonce(v_worker), array[
    (v_retried.id, v_retried.claim, 'busy', null, true, null)::bugle.failed_job,
    (v_failed.id, v_failed.claim, 'no', null, false, null)::bugle.failed_job]);

  perform test.equal(array(
      select concat_ws(' ', t.has_failed, t.retry_at > now(), t.attempts, t.reason)
      from bugle.after_failure(v_worker, test.nonce(v_worker), array[v_retried.id, v_failed.id]) t
      order by t.id),
    array['f t 16', 't 16 not_retryable'], 'retried, and failed');
  perform test.equal((select count(*) from bugle.after_failure(v_other, test.nonce(v_other), array[v_failed.id])),
    0::bigint, 'only to the worker that ran it');
end
$$;

rollback;
