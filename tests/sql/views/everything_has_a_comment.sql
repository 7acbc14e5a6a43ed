begin;

-- "\d+ bugle.jobs" should teach. A leaf of history takes its comments from the table it is like.
select test.equal(string_agg(o.thing, e'\n' order by o.thing), null, 'without a comment')
from (
  select 'schema bugle' as thing where obj_description('bugle'::regnamespace, 'pg_namespace') is null
  union all
  select format('%s bugle.%s', c.relkind, c.relname)
  from pg_class c
  where c.relnamespace = 'bugle'::regnamespace
    and c.relkind in ('r', 'p', 'v', 'S')
    and obj_description(c.oid, 'pg_class') is null
  union all
  select format('column bugle.%s.%s', c.relname, a.attname)
  from pg_attribute a
    join pg_class c on c.oid = a.attrelid
  where c.relnamespace = 'bugle'::regnamespace
    and c.relkind in ('r', 'p', 'v', 'c')
    -- the sets of jobs, which nobody but the engine reads, have the columns of bugle.jobs and those that 01_sets.sql
    -- explains
    and not (c.relkind = 'v' and c.relacl is null)
    and not c.relispartition
    and c.relname <> 'migrations'
    and a.attnum > 0
    and not a.attisdropped
    and col_description(c.oid, a.attnum) is null
  union all
  select format('function %s', p.oid::regprocedure)
  from pg_proc p
  where p.pronamespace = 'bugle'::regnamespace
    and obj_description(p.oid, 'pg_proc') is null
  union all
  select format('type %s', t.oid::regtype)
  from pg_type t
    join pg_class c on c.oid = t.typrelid
  where t.typnamespace = 'bugle'::regnamespace
    and c.relkind = 'c'
    and obj_description(t.oid, 'pg_type') is null) o;

rollback;
