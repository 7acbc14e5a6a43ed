begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_workflow constant jsonb := test.workflow('{"a": {}, "b": {}, "z": {"after": ["a", "b"]}}');
  v_a bugle.held_job := test.running(v_worker, (v_workflow ->> 'a')::bigint);
  v_b bugle.held_job;
  v_z bugle.jobs;
begin
  perform test.complete(v_worker, v_a, '{"from": "a"}');
  perform test.equal(test.states(v_workflow), 'a completed, b running, z waiting', 'one is not all');
  perform test.equal(test.complete(v_worker, v_a, '{"from": "a"}'), 'repeated', 'said twice');
  perform test.equal((test.job((v_workflow ->> 'z')::bigint)).outstanding, 1, 'is counted once');
  select j.id, j.claim into v_b from bugle.jobs_live j where j.id = (v_workflow ->> 'b')::bigint;
  perform test.complete(v_worker, v_b, '{"from": "b"}');
  v_z := test.job((v_workflow ->> 'z')::bigint);
  perform test.equal(concat_ws(' ', v_z.state, v_z.outstanding, v_z.attempt), 'ready 0', 'all are');
  perform test.equal((select string_agg(concat_ws(' ', r.name, r.state, r.result), ', ' order by r.name)
    from bugle.results_of(v_z.id) r),
    'a completed {"from": "a"}, b completed {"from": "b"}', 'it finds their results');
end
$$;

rollback;
