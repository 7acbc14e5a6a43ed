begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker);
  v_own constant bugle.held_job := test.running(v_worker);
begin
  perform bugle.cancel(v_held.id);
  perform test.equal(test.complete(v_worker, v_held), 'fenced', 'complete');
  perform test.equal(test.fail(v_worker, v_held), 'fenced', 'fail');
  perform test.equal(test.cancel_held(v_worker, v_held, 'no'), 'fenced', 'cancel_held');

  perform test.equal(test.cancel_held(v_worker, v_own, 'no'), null, 'given up by its own executor');
  perform test.equal(test.cancel_held(v_worker, v_own, 'no'), 'repeated', 'and told once more');
end
$$;

rollback;
