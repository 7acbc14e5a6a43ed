begin;

select bugle.enqueue('noop');
grant select (id, command) on bugle.jobs to bugle_enqueuer;
set local role bugle_enqueuer;
select test.refused(s, '42501')
from unnest(array[
  'insert into bugle.jobs (id, command) overriding system value values (1, ''noop'')',
  'insert into bugle.jobs (id, command) overriding user value values (1, ''noop'')',
  'insert into bugle.jobs (id, command) values (default, ''noop'')',
  'select nextval(''bugle.job_ids'')',
  'select setval(''bugle.job_ids'', 1)',
  'alter sequence bugle.job_ids restart']) s;
insert into bugle.jobs (command) values ('noop');
select test.equal(lastval(), max(j.id), 'a driver may ask for the last one') from bugle.jobs j;
reset role;

-- what Drizzle and Sequelize need: docs/reference/rights.md
grant insert (id) on bugle.jobs to bugle_enqueuer;
set local role bugle_enqueuer;
insert into bugle.jobs (id, command) values (default, 'noop');
select test.refused('insert into bugle.jobs (id, command) values (1, ''noop'')', '428C9');

rollback;
