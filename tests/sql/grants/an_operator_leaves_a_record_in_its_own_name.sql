begin;

create role test_support in role bugle_operator, bugle_viewer;
select bugle.enqueue('noop');
set local session authorization test_support;

-- what the record calls a change may be forged, who made it may not
set local bugle.verb = 'upkeep';
set local application_name = 'somebody else';
select bugle.cancel(j.id, 'because') from bugle.jobs j;
select bugle.pause_queue('default');
insert into bugle.schedules (name, cron, command) values ('s', '0 0 1 1 *', 'noop');
delete from bugle.schedules where name = 's';

select test.equal(array_agg(distinct c.who), array['test_support'], 'who') from bugle.changes c;
select test.equal(count(*) >= 4, true, 'all of them') from bugle.changes c;
select test.refused(s, '42501')
from unnest(array['delete from bugle.changes', 'update bugle.changes set who = null',
  'insert into bugle.changes (verb) values (''x'')',
  'truncate bugle.changes', 'update bugle.settings set crash_limit = 1', 'update bugle.queues set paused_at = null',
  'insert into bugle.commands (name) values (''x'')', 'insert into bugle.jobs (command) values (''x'')']) s;

rollback;
