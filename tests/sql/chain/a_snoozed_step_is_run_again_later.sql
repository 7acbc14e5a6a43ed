begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b}');
  v_held bugle.held_job := test.running(v_worker, test.chain('{a,b}'));
begin
  perform test.start_step(v_worker, v_held);
  perform test.finish_step(v_worker, v_held, 1, '{"x": 1}');
  perform test.snooze(v_worker, v_held, '1 hour');
  perform test.equal(concat_ws(' ', (test.job(v_held.id)).state, (test.job(v_held.id)).step), 'scheduled 1', 'the job');
  perform bugle.reschedule(v_held.id, now());
  v_held := test.running(v_worker, v_held.id);
  perform test.equal(test.start_step(v_worker, v_held), 2, 'the same step');
end
$$;

rollback;
