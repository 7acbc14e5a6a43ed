begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker, bugle.enqueue('noop', p_retry_policy => 'endless'));
begin
  update bugle.jobs_live j set attempt = 1000000 where j.id = v_held.id;

  perform test.fail(v_worker, v_held);

  perform test.equal((test.job(v_held.id)).state, 'retrying', 'after a million attempts');
end
$$;

rollback;
