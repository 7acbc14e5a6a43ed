begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job := test.running(v_worker);
  v_child bigint;
begin
  perform bugle.spawn(v_worker, test.nonce(v_worker), v_held, '[{"command": "noop"}]');
  select j.id into v_child from bugle.jobs_live j where j.parent = v_held.id;
  perform test.fail(v_worker, test.running(v_worker, v_child), p_retryable => false);
  perform test.fail(v_worker, test.running(v_worker, v_held.id), 'a child failed', p_retryable => false);

  perform bugle.restart(v_child);
  perform bugle.restart(v_held.id);
  perform test.equal((test.job(v_held.id)).state, 'waiting', 'it waits for the child that lives again');
  perform test.complete(v_worker, test.running(v_worker, v_child), '"done"');
  perform test.equal((test.job(v_held.id)).state, 'ready', 'and goes on');
  perform test.equal((select concat_ws(' ', r.state, r.result) from bugle.results_of(v_held.id) r), 'completed "done"',
    'with its new result');
end
$$;

rollback;
