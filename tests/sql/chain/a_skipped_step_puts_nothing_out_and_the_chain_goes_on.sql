begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b}');
  v_held constant bugle.held_job := test.running(v_worker, test.chain('{a,b}'));
begin
  perform test.start_step(v_worker, v_held);
  perform test.finish_step(v_worker, v_held, 1, '"not needed"', true);
  perform test.equal(test.steps(v_held.id), 'a skipped, b running', 'steps');
  perform test.finish_step(v_worker, v_held, 2, null, true);
  perform test.equal((test.job(v_held.id)).state, 'completed', 'a chain of skipped steps is completed');
  perform test.equal((test.job(v_held.id)).result, null::jsonb, 'without a result');
end
$$;

rollback;
