begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_workflow constant jsonb := test.workflow('{"a": {}, "b": {"after": ["a"]}, "c": {"after": ["b"]}}');
  v_ids constant bigint[] := array(select w.value::bigint from jsonb_each_text(v_workflow) w);
begin
  perform test.fail(v_worker, test.running(v_worker, (v_workflow ->> 'a')::bigint), p_retryable => false);
  perform test.equal(test.states(v_workflow), 'a failed, b failed, c failed', 'all failed');
  perform bugle.restart(v_ids);
  perform test.equal(test.states(v_workflow), 'a ready, b waiting, c waiting', 'restarted together');
  perform test.complete(v_worker, test.running(v_worker, (v_workflow ->> 'a')::bigint), '2');
  perform test.complete(v_worker, test.running(v_worker, (v_workflow ->> 'b')::bigint));
  perform test.equal(test.states(v_workflow), 'a completed, b completed, c ready', 'they go on as before');
  perform test.equal((select r.result from bugle.results_of((v_workflow ->> 'b')::bigint) r), '2',
    'with the new result');

  perform bugle.cancel((v_workflow ->> 'c')::bigint);
  perform bugle.restart((v_workflow ->> 'c')::bigint);
  perform test.equal((test.job((v_workflow ->> 'c')::bigint)).state, 'ready', 'what has ended holds nobody');
end
$$;

rollback;
