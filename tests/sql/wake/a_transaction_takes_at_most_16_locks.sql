begin;

insert into bugle.jobs (command, queue) select 'noop', 'many locks ' || n from generate_series(1, 500) n;

select test.equal(count(*), 16::bigint, 'advisory locks')
from pg_locks l where l.pid = pg_backend_pid() and l.locktype = 'advisory';

rollback;
