begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_ready bigint;
  v_held constant bugle.held_job := test.running(v_worker);
begin
  v_ready := bugle.enqueue('noop');

  perform test.refused(format('select bugle.resolve(%s)', v_ready), 'JB031',
    format('job %s is ready, not waiting', v_ready));
  perform test.refused(format('select bugle.reject(%s, ''no'')', v_held.id), 'JB031',
    format('job %s is running, not waiting', v_held.id));
  perform test.refused('select bugle.resolve(999999999)', 'JB030', 'there is no job 999999999');
  perform test.refused('select bugle.reject(null, ''no'')', 'JB030');
end
$$;

rollback;
