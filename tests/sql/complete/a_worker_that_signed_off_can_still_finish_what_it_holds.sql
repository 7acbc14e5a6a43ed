begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker);
begin
  perform bugle.detach(v_worker, test.nonce(v_worker));

  perform test.equal(test.complete(v_worker, v_held), null, 'the verdict');
  perform test.equal((test.job(v_held.id)).state, 'completed', 'state');
end
$$;

rollback;
