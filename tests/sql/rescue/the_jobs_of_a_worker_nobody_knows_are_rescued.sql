begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker);
begin
  delete from bugle.registrations r where r.id = v_worker;

  perform test.equal(bugle.rescue(), 1, 'rescued');
  perform test.equal((test.job(v_held.id)).state, 'ready', 'state');
end
$$;

rollback;
