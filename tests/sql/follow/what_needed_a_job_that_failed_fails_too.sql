begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_workflow constant jsonb := test.workflow('{"a": {}, "b": {"after": ["a"]}, "c": {"after": ["b"]}, "d": {"after": '
    '[{"job": "b", "on_failure": "run"}]}}');
  v_c bugle.jobs;
begin
  perform test.fail(v_worker, test.running(v_worker, (v_workflow ->> 'a')::bigint), p_retryable => false);
  perform test.equal(test.states(v_workflow), 'a failed, b failed, c failed, d ready',
    'unless it is told to run all the same');
  v_c := test.job((v_workflow ->> 'c')::bigint);
  perform test.equal(concat_ws('; ', v_c.reason, v_c.last_error_code, v_c.last_error),
    format('dependency_failed; dependency_failed; it needed job %s, which did not complete', v_workflow ->> 'b'),
      'it says why');
  perform test.equal((select concat_ws(' ', r.state, r.reason) from bugle.results_of((v_workflow ->> 'd')::bigint) r),
    'failed dependency_failed', 'a job that runs anyway can see it');
  perform test.equal((select e.reason from bugle.explain(v_c.id) e), 'dependency_failed', 'explained');
end
$$;

rollback;
