begin;

savepoint s;
insert into bugle.jobs (command, queue) values ('noop', 'savepoint bell');
rollback to s;
select test.equal(bugle.holds(bugle.bell_key('savepoint bell')), false, 'the lock went with the savepoint');

insert into bugle.jobs (command, queue) values ('noop', 'savepoint bell');

select test.equal(bugle.holds(bugle.bell_key('savepoint bell')), true, 'the lock is taken again');

rollback;
