begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job := test.running(v_worker);
begin
  perform test.wait(v_worker, v_held);
  perform bugle.resolve(v_held.id, '1');
  perform bugle.resolve(v_held.id, '2');
  perform test.equal((test.job(v_held.id)).result, '1', 'the first answer counts');
  perform test.refused(format('select bugle.reject(%s, ''no'')', v_held.id), 'JB031', '%is completed, not waiting');

  v_held := test.running(v_worker);
  perform test.wait(v_worker, v_held);
  perform bugle.reject(v_held.id, 'first');
  perform bugle.reject(v_held.id, 'second');
  perform test.equal((test.job(v_held.id)).last_error, 'first', 'the first answer counts');
  perform test.refused(format('select bugle.resolve(%s)', v_held.id), 'JB031', '%is failed, not waiting');
end
$$;

rollback;
