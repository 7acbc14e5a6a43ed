-- Everything that makes the schema, a line for each thing: two databases with the same lines have the same schema.
with relation as (
  select c.* from pg_class c where c.relnamespace = 'bugle'::regnamespace
    and c.relkind in ('r', 'p', 'v', 'S', 'c', 'i', 'I')
)
select format('relation %s %s %s %s %s', c.relkind, c.relname, c.reloptions, pg_get_expr(c.relpartbound, c.oid),
  array(select a::text from unnest(c.relacl) a order by 1))
from relation c
union all
select format('column %s.%s %s %s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
  a.attidentity,
  pg_get_expr(d.adbin, d.adrelid), array(select x::text from unnest(a.attacl) x order by 1))
from relation c
  join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
where c.relkind not in ('i', 'I')
union all
select format('constraint %s.%s %s', c.relname, k.conname, pg_get_constraintdef(k.oid))
from relation c
  join pg_constraint k on k.conrelid = c.oid
union all
select format('index %s', pg_get_indexdef(i.indexrelid))
from pg_index i
  join relation c on c.oid = i.indrelid
union all
select format('view %s %s', c.relname, pg_get_viewdef(c.oid))
from relation c
where c.relkind = 'v'
union all
select format('trigger %s %s', pg_get_triggerdef(t.oid), obj_description(t.oid, 'pg_trigger'))
from pg_trigger t
  join relation c on c.oid = t.tgrelid
where not t.tgisinternal
union all
select format('function %s %s', pg_get_functiondef(p.oid), array(select a::text from unnest(p.proacl) a order by 1))
from pg_proc p
where p.pronamespace = 'bugle'::regnamespace
  and p.prokind = 'f'
union all
select format('comment %s %s', pg_describe_object(d.classoid, d.objoid, d.objsubid), d.description)
from pg_description d
where (d.classoid = 'pg_class'::regclass and d.objoid in (select c.oid from relation c))
  or (d.classoid = 'pg_proc'::regclass and d.objoid in (select p.oid from pg_proc p
    where p.pronamespace = 'bugle'::regnamespace))
  or (d.classoid = 'pg_type'::regclass and d.objoid in (select t.oid from pg_type t
    where t.typnamespace = 'bugle'::regnamespace))
  or (d.classoid = 'pg_namespace'::regclass and d.objoid = 'bugle'::regnamespace)
union all
select format('schema %s', array(select a::text from unnest(n.nspacl) a order by 1)) from pg_namespace n
  where n.nspname = 'bugle'
union all
select format('policy %s', p) from bugle.retry_policies p
union all
select format('settings %s', s) from bugle.settings s
union all
select format('history %s %s %s', d.kind, d.day, d.leaf) from bugle.history_days d
union all
select format('migration %s %s %s', m.version, m.name, m.checksum) from bugle.migrations m
union all
select format('version %s %s', v.revision, v.checksum) from bugle.schema_version v
order by 1
