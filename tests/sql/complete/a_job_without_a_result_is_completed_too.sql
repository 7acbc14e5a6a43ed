begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker);
begin
  perform test.complete(v_worker, v_held, null);

  perform test.equal((test.job(v_held.id)).state, 'completed', 'state');
  perform test.equal((test.job(v_held.id)).result, null, 'result');
end
$$;

rollback;
