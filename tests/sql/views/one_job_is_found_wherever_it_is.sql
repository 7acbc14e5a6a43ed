begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker);
  v_ready bigint;
begin
  perform test.complete(v_worker, v_held);
  v_ready := bugle.enqueue('noop');

  perform test.equal((select j.state from bugle.job(v_held.id) j), 'completed', 'in history');
  perform test.equal((select j.state from bugle.job(v_ready) j), 'ready', 'alive');
  perform test.equal((select count(*) from bugle.job(-1)), 0::bigint, 'nowhere');
end
$$;

rollback;
