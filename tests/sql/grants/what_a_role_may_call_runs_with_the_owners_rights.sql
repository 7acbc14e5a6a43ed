begin;

-- Helpers are not: they inherit the rights of the functions that call them, and nobody else may. But for what the
-- trigger of an
-- INSERT calls as the inserting role.
select test.equal(array_agg(distinct p.proname::text order by p.proname::text),
  '{announce,bell_is_free,enqueue,matches,ring}'::text[], 'what else a role may call')
from pg_proc p
  cross join lateral aclexplode(p.proacl) a
where p.pronamespace = 'bugle'::regnamespace
  and a.grantee <> p.proowner
  and not p.prosecdef
  and p.provolatile <> 'i';

rollback;
