begin;

insert into bugle.commands (name, delay) values ('delayed', '10 minutes');

do $$
declare
  v_worker constant bigint := test.register();
  v_retried constant bugle.held_job := test.running(v_worker);
  v_snoozed constant bugle.held_job := test.running(v_worker);
  v_paused constant bugle.held_job := test.running(v_worker);
  v_waiting constant bugle.held_job := test.running(v_worker);
  v_moved constant bugle.held_job := test.running(v_worker);
  v_delayed constant bigint := bugle.enqueue('delayed');
  v_planned constant bigint := bugle.enqueue('noop', p_run_at => now() + interval '10 minutes',
    p_deadline => now() + interval '1 day');
  v_new bugle.held_job;
begin
  perform test.fail(v_worker, v_retried, p_retry_after => 600);
  perform test.snooze(v_worker, v_snoozed, '10 minutes');
  perform test.fail(v_worker, v_paused, p_retry_after => 600);
  perform bugle.pause(v_paused.id);
  perform test.wait(v_worker, v_waiting, null, '10 minutes');
  perform test.fail(v_worker, v_moved, p_retry_after => 5);
  perform bugle.reschedule(v_moved.id, now() + interval '10 minutes');
  update bugle.changes c set changed_at = clock_timestamp() where c.job = v_moved.id;
  perform bugle.run_maintenance(v_worker, false);
  perform test.clock_steps_back('1 hour');
  -- between the step and the keeper's next tick
  v_new := test.running(v_worker);
  perform test.fail(v_worker, v_new, p_retry_after => 600);

  perform bugle.run_maintenance(v_worker, false);

  perform test.equal(array(
      select format('%s %s', j.id, round(extract(epoch from coalesce(j.answer_by, j.run_at) - now()) / 600))
      from bugle.jobs j
      order by j.id),
    array(
      select format('%s %s', e.id, e.tens)
      from (values (v_retried.id, 1), (v_snoozed.id, 1), (v_paused.id, 1), (v_waiting.id, 1), (v_delayed, 1),
        (v_new.id, 1),
        -- what people chose stays
        (v_moved.id, 7), (v_planned, 7)) e (id, tens)
      order by e.id),
    'times from now on, in tens of minutes');
  perform test.equal((test.job(v_planned)).deadline - now(), interval '1 day 1 hour', 'a deadline is as it was given');
end
$$;

rollback;
