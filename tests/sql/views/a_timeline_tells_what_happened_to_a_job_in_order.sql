begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job := test.running(v_worker);
begin
  perform test.give_back(v_worker, v_held);
  v_held := test.running(v_worker, v_held.id);
  for v_time in 1 .. 3 loop
    perform test.snooze(v_worker, v_held, '0');
    perform bugle.promote();
    v_held := test.running(v_worker, v_held.id);
  end loop;
  perform test.fail(v_worker, v_held, 'boom', 'e1', p_retry_after => 0);
  perform bugle.promote();
  v_held := test.running(v_worker, v_held.id);
  perform test.wait(v_worker, v_held);
  perform bugle.resolve(v_held.id, '{"ok": true}');
  -- all of it was one moment
  update bugle.attempts a
  set started_at = now() + a.claim * interval '1 minute',
    ended_at = now() + a.claim * interval '1 minute' + interval '30 seconds'
  where a.job = v_held.id;
  update bugle.changes c set changed_at = now() + interval '1 hour' where c.job = v_held.id;
  update bugle.jobs j set finished_at = now() + interval '1 hour' where j.id = v_held.id;

  perform test.equal(
    array(
      select concat_ws(' ', t.event, t.attempt, t.code, t.message, case when t.who = session_user then 'by me' end)
      from bugle.timeline(v_held.id) t),
    array[
      'enqueued command noop in queue default by me', 'started 1', 'given_back 1', 'started 1',
      'snoozed 1 3 times in a row', 'started 1', 'failed 1 e1 boom', 'started 2', 'waiting 2',
      'resolve waiting -> completed by me',
      'completed 2 it was answered'], 'what happened');
  assert (select bool_and((t.worker is not null) = (t.worker_name is not null)) from bugle.timeline(v_held.id) t),
    'workers have names';
  perform test.equal((select count(*) from bugle.timeline(-1)), 0::bigint, 'no job, no events');
end
$$;

rollback;
