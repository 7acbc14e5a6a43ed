begin;

insert into bugle.schedules (name, cron, command, payload) values ('s', '@yearly', 'noop', '{"n": 1}');

do $$
declare
  v_next constant timestamptz := (select s.next_at from bugle.schedules s);
  v_job bigint;
begin
  v_job := bugle.run_schedule_now('s', 'could not wait');
  perform test.equal((test.job(v_job)).state, 'ready', 'at once');
  perform test.equal((test.job(v_job)).payload, '{"n": 1}'::jsonb, 'payload');
  perform test.equal((select s.next_at from bugle.schedules s), v_next, 'next_at is as it was');
  perform test.equal((select r.job from bugle.schedule_runs r), v_job, 'noted');
  perform test.equal((select c.note from bugle.changes c where c.schedule = 's' and c.verb = 'run_schedule_now'),
    'could not wait', 'recorded');
end
$$;

rollback;
