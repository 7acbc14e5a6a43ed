begin;

select test.equal(array_agg(c.name::text), null, 'not an argument of ' || f.name)
from unnest(array['enqueue', 'enqueue_once']) f (name)
  cross join unnest(bugle.settable_columns()) c (name)
where not exists (
  select
  from pg_proc p
  where p.pronamespace = 'bugle'::regnamespace
    and p.proname = f.name
    and 'p_' || c.name = any (p.proargnames))
group by f.name;

rollback;
