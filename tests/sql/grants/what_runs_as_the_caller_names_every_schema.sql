begin;

-- What runs with the search_path of the role that calls: it is neither pinned nor read once when it is made (RETURN),
-- and a role
-- may call it, a trigger runs it, a view uses it, or another such function calls it. There, an unqualified name may
-- find a function,
-- an operator or a type of somebody else.
create temp table open_function as
with recursive unpinned as (
  select p.oid, p.proname, p.prorettype, p.proacl, p.proowner, p.proname || '(' as called,
    pg_get_functiondef(p.oid) as definition, p.prosrc
  from pg_proc p
  where p.pronamespace = 'bugle'::regnamespace
    and p.prokind = 'f'
    and p.prosqlbody is null
    and not exists (select from unnest(p.proconfig) c where c like 'search_path=%')
), reached as (
  select u.*
  from unpinned u
  where u.prorettype = 'trigger'::regtype
    or exists (select from aclexplode(u.proacl) a where a.grantee <> u.proowner)
    or exists (select from pg_depend d where d.refobjid = u.oid and d.refclassid = 'pg_proc'::regclass
      and d.deptype = 'n')
  union
  select u.*
  from reached r
    join unpinned u on position('bugle.' || u.called in r.prosrc) > 0
)
select r.proname,
  -- without comments, strings, and what is qualified
  regexp_replace(regexp_replace(regexp_replace(r.prosrc, '--[^\n]*', '', 'g'), '''[^'']*''', '''''', 'g'),
    'operator\(pg_catalog\.[^)]+\)', ',', 'g') as source
from reached r;

select test.equal(f.proname, 'before_insert', 'they are found at all') from open_function f
  where f.proname = 'before_insert';
select test.equal(count(*) > 2, true, 'and those they call') from open_function f;

select test.equal(string_agg(distinct f.proname || ' calls ' || m[2], ', '), null, 'functions without their schema')
from open_function f, regexp_matches(f.source, '(^|[^.[:alnum:]_])([a-z_][a-z0-9_]*)\s*\(', 'g') m
where m[2] not in ('and', 'or', 'not', 'if', 'coalesce', 'greatest', 'least', 'case', 'when', 'then', 'else', 'return',
  'perform');

select test.equal(string_agg(distinct f.proname || ' uses ' || m[1], ', '), null, 'operators without their schema')
from open_function f, regexp_matches(replace(f.source, ':=', ','), '([-+*/<>=~!@#%^&|`?]+)', 'g') m;

select test.equal(string_agg(distinct f.proname || ' uses ' || m[1], ', '), null,
  'what looks for an operator by its bare name')
from open_function f, regexp_matches(f.source, '\m(in|between|like|ilike|similar|nullif|distinct)\M', 'g') m;
select test.equal(string_agg(distinct f.proname, ', '), null, 'CASE x WHEN does, too')
from open_function f
where f.source ~ '\mcase\s+(?!when\M)';

select test.equal(string_agg(distinct f.proname || ' uses ' || m[1], ', '), null, 'types without their schema')
from open_function f,
  regexp_matches(f.source, '(?:::\s*|^\s*v_\w+\s+(?:constant\s+)?)([a-z_][a-z0-9_.]*)', 'gn') m
where m[1] not in ('boolean', 'integer', 'bigint', 'double', 'numeric', 'interval', 'real')
  and m[1] not like 'pg_catalog.%'
  and m[1] not like 'bugle.%';

rollback;
