begin;

select test.equal(count(*), 0::bigint, 'columns')
from pg_attribute a
  join pg_class c on c.oid = a.attrelid
where c.relnamespace = 'bugle'::regnamespace
  and c.relkind = 'v'
  and a.attname in ('nonce', 'life_key', 'answer_token');

rollback;
