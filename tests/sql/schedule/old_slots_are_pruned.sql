begin;

do $$
declare
  v_live constant bigint := bugle.enqueue('noop');
begin
  insert into bugle.schedule_runs (schedule, slot, job, skipped, enqueued_at) values
    ('s', '2026-01-01 00:00Z', 0, null, now() - interval '1 year'),
    ('s', '2026-01-01 01:00Z', null, 'late', now() - interval '1 year'),
    ('s', '2026-01-01 02:00Z', v_live, null, now() - interval '1 year'),
    ('s', '2026-01-01 03:00Z', 0, null, now());
  perform bugle.prune();
  perform test.equal((select array_agg(r.slot order by r.slot) from bugle.schedule_runs r),
    '{2026-01-01 02:00Z,2026-01-01 03:00Z}'::timestamptz[], 'the old ones, but not while the job is there');
end
$$;

rollback;
