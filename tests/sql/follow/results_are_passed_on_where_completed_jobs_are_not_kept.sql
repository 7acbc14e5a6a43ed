begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_workflow jsonb;
  v_id bigint;
begin
  update bugle.settings set keep_completed = false;
  v_workflow := test.workflow('{"a": {"on_success": "thank"}, "b": {"after": ["a"]}}');
  perform test.complete(v_worker, test.running(v_worker, (v_workflow ->> 'a')::bigint), '{"n": 1}');
  perform test.equal(test.states(v_workflow), 'a gone, b ready', 'its row is gone');
  perform test.equal((select concat_ws(' ', r.name, r.state, r.result)
    from bugle.results_of((v_workflow ->> 'b')::bigint) r), 'a completed {"n": 1}', 'its result is not');
  perform test.equal((select j.payload -> 'result' from bugle.jobs_live j where j.command = 'thank'), '{"n": 1}',
    'nor for who follows');
  v_id := bugle.enqueue_after(array[(v_workflow ->> 'a')::bigint], 'noop');
  perform test.equal((test.job(v_id)).state, 'ready', 'one that is not there has been completed');
end
$$;

rollback;
