begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker,
    bugle.enqueue('noop', p_deadline => now() + interval '1 second'));
begin
  perform test.wait(v_worker, v_held, p_for => '0');
  update bugle.jobs_live j set deadline = now() where j.id = v_held.id;

  perform test.equal(bugle.expire(), 1, 'expired');
  perform test.equal((test.job(v_held.id)).reason, 'deadline', 'reason');
end
$$;

rollback;
