begin;

select test.equal(string_agg(d.description, e'\n'), null, 'comments that do not end with a full stop or are very long')
from pg_description d
  left join pg_class c on d.classoid = 'pg_class'::regclass and c.oid = d.objoid
  left join pg_proc p on d.classoid = 'pg_proc'::regclass and p.oid = d.objoid
  left join pg_type t on d.classoid = 'pg_type'::regclass and t.oid = d.objoid
where coalesce(c.relnamespace, p.pronamespace, t.typnamespace) = 'bugle'::regnamespace
  and (d.description !~ '[.?…]$' or length(d.description) > 200);

rollback;
