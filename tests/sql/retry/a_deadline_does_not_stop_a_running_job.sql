begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker,
    bugle.enqueue('noop', p_deadline => now() + interval '1 second'));
begin
  update bugle.jobs_live j set deadline = now() where j.id = v_held.id;

  perform test.equal(bugle.expire(), 0, 'nothing expires');
  perform test.equal(test.complete(v_worker, v_held), null, 'it can be completed');
end
$$;

rollback;
