begin;

do $$
declare
  v_worker constant bigint := test.register('{parent,child}');
  v_held bugle.held_job;
begin
  v_held := test.running(v_worker, bugle.enqueue('parent'));
  perform bugle.spawn(v_worker, test.nonce(v_worker), v_held, '[{"command": "child"}, {"command": "child"}]');
  perform bugle.cancel(v_held.id, p_family => true);

  perform bugle.restart(v_held.id, p_family => true);

  perform test.equal((select string_agg(j.state, ' ' order by j.id) from bugle.jobs_live j), 'waiting ready ready',
    'the parent and its children');
  perform test.complete(v_worker, (c.id, c.claim)::bugle.held_job) from test.claim(v_worker, 2) c;
  perform test.equal((test.job(v_held.id)).state, 'ready', 'the parent, after its children');
end
$$;

rollback;
