begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_stale constant bugle.held_job := test.running(v_worker);
  v_before bugle.jobs;
begin
  perform test.give_back(v_worker, v_stale);
  perform test.running(v_worker, v_stale.id);
  v_before := test.job(v_stale.id);

  perform test.equal(test.complete(v_worker, v_stale), 'fenced', 'complete');
  perform test.equal(test.fail(v_worker, v_stale), 'fenced', 'fail');
  perform test.equal(test.give_back(v_worker, v_stale), 'fenced', 'give_back');
  perform test.equal(test.snooze(v_worker, v_stale, '1 hour'), 'fenced', 'snooze');
  perform test.equal(test.cancel_held(v_worker, v_stale, 'no'), 'fenced', 'cancel_held');
  perform test.equal(test.wait(v_worker, v_stale), 'fenced', 'wait');
  perform test.equal(bugle.report_progress(v_worker, test.nonce(v_worker), v_stale, 0.5, 'half'), false,
    'report_progress');

  perform test.equal(test.job(v_stale.id), v_before, 'nothing changed');
  perform test.equal((select count(*) from bugle.attempts a where a.outcome <> 'given_back'), 0::bigint, 'attempts');
end
$$;

rollback;
