begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b}');
  v_held constant bugle.held_job := test.running(v_worker, test.chain('{a,b}'));
begin
  perform test.start_step(v_worker, v_held);
  perform test.finish_step(v_worker, v_held, 1);
  assert (select e.message like 'It has been running for %, attempt 1, in step 2 of 2 (b), 50 % done.'
    from bugle.explain(v_held.id) e), (select e.message from bugle.explain(v_held.id) e);
  perform test.wait(v_worker, v_held);
  perform test.equal((select e.message from bugle.explain(v_held.id) e),
    'It waits for an external answer, in step 2 of 2 (b).', 'waiting');
  perform bugle.reject(v_held.id, 'no');
  assert (select e.fix like '%p_from_failed_step => true%' from bugle.explain(v_held.id) e), 'what would change it';
end
$$;

rollback;
