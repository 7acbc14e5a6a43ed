begin;

set local client_min_messages = error; -- wal_level may be too low to subscribe
create publication everything for all tables;

create temp table j as
select bugle.enqueue('noop') as cancelled, bugle.enqueue('noop') as failed, bugle.enqueue('noop') as removed,
  bugle.enqueue('noop') as again;
select bugle.cancel(j.cancelled) from j;
select bugle.set_state(j.failed, 'failed', 'a test') from j;
select bugle.cancel(j.removed) from j;

select test.equal(bugle.restart(j.cancelled), 'ready', 'restart') from j;
select test.equal(bugle.restart(j.failed), 'ready', 'restart') from j;
select bugle.remove(j.removed) from j;
select bugle.pause(j.again), bugle.resume(j.again), bugle.set_priority(j.again, 3),
  bugle.reschedule(j.again, now() + interval '1 hour') from j;
select bugle.prune(), bugle.fold_minutes();
select test.equal(
  (select string_agg(s.state, ' ' order by s.id) from bugle.jobs s
    where s.id in (j.cancelled, j.failed, j.removed, j.again)),
  'ready ready scheduled', 'they are as they were told to be')
from j;

-- One without columns never has a row to change.
select test.equal(string_agg(c.relname, ', '), null, 'tables without a key')
from pg_class c
where c.relnamespace = 'bugle'::regnamespace
  and c.relkind = 'r'
  and c.relnatts > 0
  and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary);

-- From PostgreSQL 18 on such a key does not identify rows, unless generated columns are published.
select test.equal(string_agg(c.relname, ', '), null, 'tables whose key has a generated column')
from pg_class c
  join pg_index i on i.indrelid = c.oid and i.indisprimary
  join pg_attribute a on a.attrelid = c.oid and a.attnum = any (i.indkey)
where c.relnamespace = 'bugle'::regnamespace
  and a.attgenerated <> '';

rollback;
