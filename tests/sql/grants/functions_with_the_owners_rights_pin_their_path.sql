begin;

select test.equal(string_agg(p.oid::regprocedure::text, ', '), null, 'security definer without its search_path')
from pg_proc p
where p.pronamespace = 'bugle'::regnamespace
  and p.prosecdef
  and not 'search_path=pg_catalog, bugle, pg_temp' = any (coalesce(p.proconfig, '{}'));

select test.equal(count(*) > 20, true, 'they are found at all') from pg_proc p
  where p.pronamespace = 'bugle'::regnamespace and p.prosecdef;

rollback;
