begin;

insert into bugle.retry_policies values ('short-lived', 'fixed', 1, '1 second', 1, '1 second', 0, null, null);
insert into bugle.schedules (name, cron, command, retry_policy) values ('bad', '0 * * * *', 'noop', 'short-lived');
insert into bugle.schedules (name, cron, command) values ('good', '0 * * * *', 'noop'), ('lost', '0 * * * *', 'noop');
-- as if it had been removed by the owner with triggers disabled, or restored without it
alter table bugle.retry_policies disable trigger keep_policy_in_use;
delete from bugle.retry_policies where name = 'short-lived';
alter table bugle.retry_policies enable trigger keep_policy_in_use;
update bugle.schedules set next_at = '2026-01-01 00:00Z';
alter table bugle.schedules disable trigger check_schedule;
update bugle.schedules set timezone = 'Atlantis/Capital' where name = 'lost';
alter table bugle.schedules enable trigger check_schedule;

do $$
begin
  perform test.equal(bugle.fire_schedules('2026-01-01 00:00Z'), 1, 'the good one');
  perform test.equal((select s.last_error like '%retry_policy%short-lived%' from bugle.schedules s
    where s.name = 'bad'), true, 'noted');
  perform test.equal((select s.next_at from bugle.schedules s where s.name = 'bad'), '2026-01-01 01:00Z'::timestamptz,
    'next slot');
  perform test.equal((select r.skipped from bugle.schedule_runs r where r.schedule = 'bad'), 'error',
    'noted with the slot');
  perform test.equal((select s.last_error like '%Atlantis%' and s.next_at is null from bugle.schedules s
    where s.name = 'lost'), true, 'it rests');

  insert into bugle.retry_policies values ('short-lived', 'fixed', 1, '1 second', 1, '1 second', 0, null, null);
  perform test.equal(bugle.fire_schedules('2026-01-01 01:00Z'), 2, 'both');
  perform test.equal((select s.last_error from bugle.schedules s where s.name = 'bad'), null, 'forgotten');
end
$$;

rollback;
