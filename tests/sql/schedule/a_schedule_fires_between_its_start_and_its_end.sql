begin;

insert into bugle.schedules (name, cron, command, starts_at, ends_at)
values ('s', '0 12 * * *', 'noop', '2100-01-01 12:00Z', '2100-01-03 12:00Z');

do $$
begin
  perform test.equal((select s.next_at from bugle.schedules s), '2100-01-01 12:00Z'::timestamptz,
    'its start is a slot');
  perform bugle.fire_schedules('2100-01-01 12:00Z');
  perform bugle.fire_schedules('2100-01-02 12:00Z');
  perform bugle.fire_schedules('2100-01-03 12:00Z');
  perform test.equal((select s.next_at from bugle.schedules s), null, 'never again');
  perform test.equal((select count(*) from bugle.schedule_runs r where r.job is not null), 3::bigint,
    'its end is a slot');
  update bugle.schedules set ends_at = null;
  perform test.equal((select s.next_at from bugle.schedules s), '2100-01-01 12:00Z'::timestamptz, 'prolonged');
end
$$;

rollback;
