begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_workflow jsonb := test.workflow('{"a": {}, "b": {"after": ["a"]}, "c": {"after": ["a"]}}');
begin
  perform bugle.pause((v_workflow ->> 'b')::bigint);
  perform test.refused(format('select bugle.resolve(%s)', v_workflow ->> 'c'), 'JB031',
    '%waits for 1 other jobs, not for an answer');
  perform bugle.set_state((v_workflow ->> 'c')::bigint, 'ready');
  perform test.equal((test.job((v_workflow ->> 'c')::bigint)).outstanding, null::integer,
    'overruled, it waits for nobody');
  perform test.complete(v_worker, test.running(v_worker, (v_workflow ->> 'a')::bigint));
  perform test.equal(test.states(v_workflow), 'a completed, b paused, c running', 'a paused one stays paused');
  perform bugle.resume((v_workflow ->> 'b')::bigint);
  perform test.equal((test.job((v_workflow ->> 'b')::bigint)).state, 'ready',
    'and has nothing to wait for when it goes on');

  v_workflow := test.workflow('{"a": {}, "b": {"after": ["a"]}}');
  perform bugle.pause((v_workflow ->> 'b')::bigint);
  perform bugle.resume((v_workflow ->> 'b')::bigint);
  perform test.equal((select concat_ws(' ', j.state, j.outstanding) from test.job((v_workflow ->> 'b')::bigint) j),
    'waiting 1', 'back to where it was');
end
$$;

rollback;
