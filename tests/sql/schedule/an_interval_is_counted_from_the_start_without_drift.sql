begin;

select test.equal(bugle.next_interval_slot(e.every::interval, '2026-01-01 00:00:00.25Z', e.after::timestamptz),
  e.next::timestamptz, e.after)
from (values
  ('10 minutes', '2025-12-31 12:00Z', '2025-12-31 12:00:00.25Z'),
  ('7 seconds', '2025-12-31 23:59:59Z', '2026-01-01 00:00:00.25Z'),
  ('10 minutes', '2026-01-01 00:00:00.25Z', '2026-01-01 00:10:00.25Z'),
  ('10 minutes', '2026-01-01 00:10:00.249999Z', '2026-01-01 00:10:00.25Z'),
  ('7 seconds', '2046-06-01 00:00Z', '2046-06-01 00:00:01.25Z'),
  ('1.5 seconds', '2026-01-01 00:00:02Z', '2026-01-01 00:00:03.25Z'),
  ('1 day', '2026-03-29 12:00Z', '2026-03-30 00:00:00.25Z')) e (every, after, next);

insert into bugle.schedules (name, every, command) values ('from now', '10 minutes', 'noop');
insert into bugle.schedules (name, every, command, starts_at)
  values ('from then', '10 minutes', 'noop', now() - interval '1 hour 3 minutes');
insert into bugle.schedules (name, every, command, starts_at)
  values ('later', '10 minutes', 'noop', now() + interval '1 hour');
select test.equal(s.next_at - now(), case s.name
    when 'from now' then interval '10 minutes'
    when 'from then' then interval '7 minutes'
    else interval '1 hour' end, s.name)
from bugle.schedules s;

rollback;
