begin;

create role test_ada login in role bugle_operator, bugle_viewer;
create role test_team in role bugle_operator, bugle_viewer;
create role test_site login in role test_ada, test_team;
create temporary table enqueued as select bugle.enqueue('noop') as id, n from generate_series(1, 3) n;
grant select on enqueued to public;
set local session authorization test_site;

-- behind a proxy that has authenticated ada
set local role test_ada;
select bugle.cancel(e.id) from enqueued e where e.n = 1;
-- a group is nobody
set local role test_team;
select bugle.cancel(e.id) from enqueued e where e.n = 2;
set local role none;
select bugle.cancel(e.id) from enqueued e where e.n = 3;

reset session authorization;
select test.equal(array_agg(c.who order by c.job), array['test_ada', 'test_site', 'test_site'], 'who')
from bugle.changes c
where c.verb = 'cancel';

set local session authorization test_ada;
select test.refused('set local role test_site', '42501');

rollback;
