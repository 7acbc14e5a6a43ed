begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job := test.running(v_worker);
begin
  perform test.wait(v_worker, v_held, 'secret', '1 hour');

  perform test.refused(format('select bugle.resolve(%s, null, ''guess'')', v_held.id), 'JB032',
    format('the token is not the one job %s waits for', v_held.id));
  perform test.refused(format('select bugle.resolve(%s)', v_held.id), 'JB032');
  perform test.refused(format('select bugle.reject(%s, ''no'', ''guess'')', v_held.id), 'JB032');

  v_held := test.running(v_worker);
  perform test.wait(v_worker, v_held);
  perform bugle.resolve(v_held.id, p_token => 'any');
  perform test.equal((test.job(v_held.id)).state, 'completed', 'where none was set, any will do');
end
$$;

rollback;
