begin;

create role test_observer in role bugle_observer;
select bugle.enqueue('noop', '{"secret": 1}');
insert into bugle.schedules (name, every, command, payload) values ('s', '1 hour', 'noop', '{"secret": 1}');
set local role test_observer;

select test.equal(count(*), 1::bigint, 'jobs') from (select j.id, j.state, j.last_error from bugle.jobs j) j;
select test.equal(count(*), 1::bigint, 'queues') from bugle.queue_stats;
select test.equal(count(*) > 0, true, 'timeline') from bugle.jobs j cross join bugle.timeline(j.id);
select test.equal(count(*) > 0, true, 'explain') from bugle.jobs j cross join bugle.explain(j.id);
select test.refused(s, '42501')
from unnest(array[
  'select payload from bugle.jobs', 'select * from bugle.jobs', 'select j from bugle.jobs_live j',
  'select headers from bugle.jobs', 'select result from bugle.jobs', 'select context from bugle.jobs',
  'select answer from bugle.jobs_live', 'select payload from bugle.dead_letters', 'select output from bugle.steps',
  'select payload from bugle.schedules', 'select result from bugle.dependencies',
  'select 1 from bugle.jobs j where j.payload @> ''{"secret": 1}''',
  'select * from bugle.job(1)', 'select * from bugle.results_of(1)', 'select * from bugle.endings(''{1}'')',
  'select bugle.cancel(1)', 'insert into bugle.jobs (command) values (''noop'')']) s;

rollback;
