begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b,c}');
  v_case record;
  v_held bugle.held_job;
begin
  for v_case in
    select *
    from (values (null, true, 'step_failed'), ('timeout', true, 'timeout'), ('oops', false, 'not_retryable')) c (code,
      retryable, reason)
  loop
    v_held := test.running(v_worker, test.chain());
    perform test.start_step(v_worker, v_held);
    perform test.finish_step(v_worker, v_held, 1, '{"x": 1}');
    perform test.fail(v_worker, v_held, p_code => v_case.code, p_retryable => v_case.retryable);

    perform test.equal(concat_ws(' ', (test.job(v_held.id)).state, (test.job(v_held.id)).reason),
      'failed ' || v_case.reason, 'the job');
    perform test.equal(test.steps(v_held.id), 'a done, b failed, c pending', 'the steps');
    perform test.equal((select concat_ws(' ', d.failed_step, d.worker_name, d.host) from bugle.dead_letters d
      where d.id = v_held.id), 'b tester host-1',
      'the dead letter names the step and the node');
    assert (select e.message like '%; in step 2 of 3 (b); the last error: boom.' from bugle.explain(v_held.id) e),
      'explained';
  end loop;
end
$$;

rollback;
