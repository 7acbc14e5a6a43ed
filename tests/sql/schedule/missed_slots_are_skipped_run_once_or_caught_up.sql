begin;

insert into bugle.schedules (name, cron, command, misfire, catch_up_limit) values
  ('skip', '0 * * * *', 'noop', 'skip', 10),
  ('run_once', '0 * * * *', 'noop', 'run_once', 10),
  ('catch_up', '0 * * * *', 'noop', 'catch_up', 3),
  ('catch_up_all', '0 * * * *', 'noop', 'catch_up', 1000),
  ('each_second', '* * * * * *', 'noop', 'run_once', 1);
update bugle.schedules set next_at = '2026-01-01 00:00Z';

do $$
begin
  set local statement_timeout = '60s'; -- a million missed seconds are not counted one by one
  perform bugle.fire_schedules('2026-01-12 10:30:00Z');
  perform test.equal(
    (select array_agg(r.slot order by r.slot) from bugle.schedule_runs r where r.schedule = e.name
      and r.job is not null),
    e.slots::timestamptz[], e.name)
  from (values
    ('skip', null),
    ('run_once', '{2026-01-12 10:00Z}'),
    ('catch_up', '{2026-01-12 08:00Z,2026-01-12 09:00Z,2026-01-12 10:00Z}'),
    ('each_second', '{2026-01-12 10:30Z}')) e (name, slots);
  perform test.equal((select r.skipped from bugle.schedule_runs r where r.schedule = 'skip'), 'late', 'why not');
  perform test.equal((select count(*) from bugle.schedule_runs r where r.schedule = 'catch_up_all'), 275::bigint,
    'all of them');
  perform test.equal((select min(s.next_at) from bugle.schedules s where s.name <> 'each_second'),
    '2026-01-12 11:00Z'::timestamptz, 'on from now');

  -- a few seconds late is not missed
  perform bugle.fire_schedules('2026-01-12 11:00:30Z');
  perform test.equal((select count(*) from bugle.schedule_runs r where r.schedule = 'skip' and r.job is not null),
    1::bigint, 'late by seconds');
end
$$;

rollback;
