begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker);
begin
  perform test.equal(bugle.cancel(v_held.id), 'cancelled', 'cancel');
  perform test.equal((test.job(v_held.id)).reason, 'operator', 'reason');
  perform test.complete(v_worker, v_held);
  perform test.equal((test.job(v_held.id)).state, 'cancelled', 'after a late completion');
  perform test.fail(v_worker, v_held);
  perform test.equal((test.job(v_held.id)).state, 'cancelled', 'after a late failure');
end
$$;

rollback;
