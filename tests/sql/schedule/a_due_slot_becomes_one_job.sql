begin;

insert into bugle.schedules (name, cron, command, payload, queue, priority, timeout, max_attempts, retry_policy,
  headers)
values ('report', '@daily', 'noop', '{"a": 1}', 'reports', 3, '5 minutes', 2, 'fixed', '{"team": "billing"}');
update bugle.schedules set next_at = '2026-01-01 00:00Z';

do $$
declare
  v_job bugle.jobs;
begin
  perform test.equal(bugle.fire_schedules('2025-12-31 23:59:59Z'), 0, 'too early');
  perform test.equal(bugle.fire_schedules('2026-01-01 00:00Z'), 1, 'on time');
  perform test.equal(bugle.fire_schedules('2026-01-01 00:00Z'), 0, 'once');

  select j.* into v_job from bugle.jobs j;
  perform test.equal(v_job.state, 'ready', 'state');
  perform test.equal((v_job.command, v_job.payload, v_job.queue, v_job.priority, v_job.timeout, v_job.max_attempts,
    v_job.retry_policy)::text,
    ('noop', '{"a": 1}'::jsonb, 'reports', 3, interval '5 minutes', 2, 'fixed')::text, 'as the schedule says');
  perform test.equal(v_job.headers,
    '{"team": "billing", "schedule": "report", "slot": "2026-01-01T00:00:00.000000Z"}'::jsonb, 'headers');
  perform test.equal(v_job.run_at, '2026-01-01 00:00Z'::timestamptz, 'due at its slot');
  perform test.equal((select (s.next_at, s.last_at, s.last_job)::text from bugle.schedules s),
    ('2026-01-02 00:00Z'::timestamptz, '2026-01-01 00:00Z'::timestamptz, v_job.id)::text, 'the schedule goes on');
  perform test.equal((select (r.slot, r.job, r.skipped)::text from bugle.schedule_runs r),
    ('2026-01-01 00:00Z'::timestamptz, v_job.id, null::text)::text, 'the run');

  -- not even if somebody turns the schedule back
  update bugle.schedules set next_at = '2026-01-01 00:00Z';
  perform test.equal(bugle.fire_schedules('2026-01-01 00:01Z'), 0, 'the slot is taken');
  perform test.equal((select count(*) from bugle.jobs), 1::bigint, 'one job');
end
$$;

rollback;
