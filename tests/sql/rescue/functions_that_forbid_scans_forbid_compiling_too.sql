begin;

-- A plan that cannot avoid what was forbidden counts as very expensive, and expensive plans are compiled: half a second
-- for
-- looking into an empty table, each second.
select test.equal(string_agg(p.oid::regprocedure::text, ', '), null, 'functions without jit = off')
from pg_proc p
where p.pronamespace = 'bugle'::regnamespace
  and 'enable_seqscan=off' = any (p.proconfig)
  and not 'jit=off' = any (p.proconfig);

rollback;
