begin;

insert into bugle.jobs (command, queue) select 'noop', 'one lock' from generate_series(1, 1000);
insert into bugle.jobs (command, queue) values ('noop', 'one lock');

select test.equal(count(*), 1::bigint, 'advisory locks')
from pg_locks l where l.pid = pg_backend_pid() and l.locktype = 'advisory';
select test.equal(current_setting('bugle.bell'), 'one lock', 'it is remembered');
select test.equal(coalesce(current_setting('bugle.bells', true), ''), '', 'and was asked for once');
select test.equal(bugle.holds(bugle.bell_key('one lock')), true, 'it is the bell of the queue');

rollback;
