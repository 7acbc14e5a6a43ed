begin;

set local role bugle_enqueuer;

select test.refused($$insert into bugle.jobs (command) values ('')$$, 'JB001', 'column "command"%');
select test.refused($$insert into bugle.jobs (command, retry_policy) values ('noop', 'nonsense')$$, 'JB004',
  '%nonsense%');
select test.refused($$insert into bugle.jobs (command, payload) values ('noop', to_jsonb(repeat('x', 2000000)))$$,
  'JB003', '%2000002%');

rollback;
