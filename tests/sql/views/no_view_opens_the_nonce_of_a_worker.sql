begin;

select test.equal(count(*), 0::bigint, 'columns')
from pg_attribute a
  join pg_class c on c.oid = a.attrelid
where c.relnamespace = 'bugle'::regnamespace
  and c.relkind = 'v'
  -- a view without grants is for the engine's own functions
  and c.relacl is not null
  and a.attname in ('nonce', 'life_key', 'answer_token');

rollback;
