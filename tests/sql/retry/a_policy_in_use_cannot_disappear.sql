begin;

insert into bugle.retry_policies (name, delay) values ('used', '1 minute'), ('idle', '1 minute'), ('of_command', '1 s');
insert into bugle.commands (name, retry_policy) values ('noop', 'of_command');
select bugle.enqueue('noop', p_retry_policy => 'used');

select test.refused('delete from bugle.retry_policies where name = ''used''', 'JB031', '%''used'' is used by job%');
select test.refused('update bugle.retry_policies set name = ''x'' where name = ''used''', 'JB031', '%is used by job%');
select test.refused('delete from bugle.retry_policies where name = ''default''', 'JB031', '%''default'' cannot%');
select test.refused('delete from bugle.retry_policies where name = ''of_command''', 'JB031',
  '%''of_command'' is used by the command ''noop''');
update bugle.commands set retry_policy = null, step_retry_policy = 'of_command';
select test.refused('update bugle.retry_policies set name = ''x'' where name = ''of_command''', 'JB031',
  '%''of_command'' is used by the command ''noop''');
update bugle.retry_policies set delay = '2 minutes' where name = 'used';
delete from bugle.retry_policies where name = 'idle';
insert into bugle.retry_policies (name, delay) values ('of_schedule', '1 minute');
insert into bugle.schedules (name, every, command, retry_policy) values ('nightly', '1 day', 'noop', 'of_schedule');
select test.refused('delete from bugle.retry_policies where name = ''of_schedule''', 'JB031',
  '%is used by the schedule ''nightly''');
delete from bugle.schedules;
delete from bugle.retry_policies where name = 'of_schedule';
select bugle.cancel(j.id) from bugle.jobs_live j;
delete from bugle.retry_policies where name = 'used';

select test.equal(count(*), 0::bigint, 'gone') from bugle.retry_policies p where p.name in ('used', 'idle');

rollback;
