begin;

create temp table read as
select c.oid, pg_stat_get_xact_tuples_returned(c.oid) as before
from pg_class c
where c.oid = 'bugle.chains'::regclass
  or c.oid in (select i.indexrelid from pg_index i where i.indrelid = 'bugle.chains'::regclass);

insert into bugle.jobs (command, steps) select 'import', array['fetch ' || n, 'store'] from generate_series(1, 2000) n;

select test.equal((select count(*) from bugle.chains c where c.command = 'import'), 2001::bigint,
  'each chain, and their common end');
-- two chains that read all others would read two million rows
select test.equal(sum(pg_stat_get_xact_tuples_returned(r.oid) - r.before) < 100000, true,
  'rows read do not grow with the square')
from read r;

rollback;
