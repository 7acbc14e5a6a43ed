begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_workflow constant jsonb := test.workflow('{"a": {}, "b": {"after": ["a"]}}');
begin
  perform test.fail(v_worker, test.running(v_worker, (v_workflow ->> 'a')::bigint));
  perform test.equal(test.states(v_workflow), 'a retrying, b waiting', 'it has not ended');
end
$$;

rollback;
