begin;

create role test_nobody;
set local role test_nobody;

select test.refused(s, '42501')
from unnest(array['insert into bugle.jobs (command) values (''noop'')', 'select id from bugle.jobs',
  'select bugle.protocol()']) s;

reset role;
grant usage on schema bugle to test_nobody;
select test.equal(string_agg(p.oid::regprocedure::text, ', '), null, 'functions that everybody may call')
from pg_proc p
where p.pronamespace = 'bugle'::regnamespace
  and has_function_privilege('test_nobody', p.oid, 'execute');

rollback;
