begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker);
begin
  perform test.wait(v_worker, v_held);
  set local role bugle_operator;
  perform bugle.resolve(v_held.id, '1');
  perform test.equal((select j.state from bugle.job(v_held.id) j), 'completed', 'state');
end
$$;

set local role bugle_operator;
select test.refused(s, '42501')
from unnest(array['update bugle.jobs set priority = 1', 'delete from bugle.jobs', 'select bugle.end_jobs(''{}'')',
  'select bugle.promote()']) s;

rollback;
