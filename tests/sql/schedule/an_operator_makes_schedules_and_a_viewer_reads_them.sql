begin;

set local role bugle_operator;
insert into bugle.schedules (name, cron, command) values ('s', '@hourly', 'noop');
update bugle.schedules set cron = '@daily' where name = 's';
select bugle.pause_schedule('s');
select bugle.resume_schedule('s');
select bugle.run_schedule_now('s');
select test.refused(s, '42501')
from unnest(array[
  'update bugle.schedules set next_at = now()',
  'insert into bugle.schedules (name, cron, command, last_at) values (''t'', ''@daily'', ''noop'', now())',
  'delete from bugle.schedule_runs',
  'select bugle.fire_schedules()']) s;
set local role bugle_viewer;
select test.equal(count(*), 1::bigint, 'a viewer sees it') from bugle.schedules s
  join bugle.schedule_runs r on r.schedule = s.name;
select test.equal(count(*), 3::bigint, 'and may ask') from bugle.schedule_preview('@daily', 'UTC', 3);
select test.refused(s, '42501')
from unnest(array['delete from bugle.schedules', 'select bugle.run_schedule_now(''s'')',
  'update bugle.schedules set paused_at = now()']) s;
set local role bugle_enqueuer;
select test.refused('select from bugle.schedules', '42501');
set local role bugle_operator;
delete from bugle.schedules where name = 's';

rollback;
