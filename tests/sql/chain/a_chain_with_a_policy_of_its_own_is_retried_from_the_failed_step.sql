begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b,c}');
  v_id bigint;
  v_held bugle.held_job;
  v_job bugle.jobs;
begin
  insert into bugle.commands (name, retry_policy) values ('templated', 'fixed');
  for v_n in 1 .. 3 loop
    v_id := case v_n
      when 1 then bugle.enqueue('chain', p_steps => '{a,b,c}', p_retry_policy => 'fixed')
      when 2 then bugle.enqueue('chain', p_steps => '{a,b,c}', p_max_attempts => 2)
      else bugle.enqueue('templated', p_steps => '{a,b,c}') end;
    v_held := test.running(v_worker, v_id);
    perform test.start_step(v_worker, v_held);
    perform test.finish_step(v_worker, v_held, 1, '{"x": 1}');
    perform test.fail(v_worker, v_held);
    v_job := test.job(v_id);
    perform test.equal(v_job.state, 'retrying', 'the job');
    perform test.equal(v_job.step, 1, 'its place');
    assert (select e.message like 'Attempt 1 of % failed in step 2 of 3 (b) (boom);%' from bugle.explain(v_id) e),
      'explained';

    perform bugle.reschedule(v_id, now());
    v_held := test.running(v_worker, v_id);
    perform test.equal(test.start_step(v_worker, v_held), 2, 'it goes on with the failed step');
    perform test.equal((select s.attempts from bugle.steps s where s.job = v_id and s.position = 2), 2,
      'its second try');
    perform test.finish_step(v_worker, v_held, 2);
    perform test.finish_step(v_worker, v_held, 3);
    perform test.equal((test.job(v_id)).state, 'completed', 'in the end');
  end loop;
end
$$;

rollback;
