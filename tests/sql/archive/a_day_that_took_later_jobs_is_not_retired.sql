begin;

update bugle.settings set ended_days = 3;
select bugle.add_day('ended', (now() at time zone 'utc')::date - 10);
insert into bugle.jobs (command, state, finished_at, day)
values ('noop', 'completed', now() - interval '10 days', (now() at time zone 'utc')::date - 10),
  ('noop', 'completed', now() - interval '1 day', (now() at time zone 'utc')::date - 10);

select test.equal(bugle.upkeep(), null, 'upkeep leaves it alone');
select test.equal(count(*), 2::bigint, 'jobs kept') from bugle.jobs;
delete from bugle.jobs j where j.finished_at > now() - interval '5 days';
select test.equal(bugle.upkeep(), format('retired ended %s', (now() at time zone 'utc')::date - 10),
  'when they are gone');
select test.equal(count(*), 0::bigint, 'jobs kept then') from bugle.jobs;

rollback;
