begin;

select bugle.enqueue('noop');
set local role bugle_viewer;

select test.equal(count(*), 1::bigint, 'jobs') from bugle.jobs j where j.payload = '{}';
select count(*) from bugle.workers;
select count(*) from bugle.queue_stats;
select count(*) from bugle.unserved;
select count(*) from bugle.running_jobs;
select count(*) from bugle.dead_letters;
select count(*) from bugle.attempts;
select count(*) from bugle.retry_policies;
select count(*) from bugle.commands;
select count(*) from bugle.queues;
select count(*) from bugle.settings;
select count(*) from bugle.job(1);
select test.refused(s, '42501')
from unnest(array['insert into bugle.jobs (command) values (''noop'')', 'update bugle.jobs set priority = 1',
  'delete from bugle.jobs',
  'select bugle.enqueue(''noop'')', 'select * from bugle.registrations', 'select bugle.promote()',
    'select bugle.resolve(1)',
  'update bugle.settings set crash_limit = 1']) s;

rollback;
