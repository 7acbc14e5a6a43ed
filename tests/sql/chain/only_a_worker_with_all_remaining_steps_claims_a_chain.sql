begin;

do $$
declare
  v_lacking bigint;
  v_all bigint;
  v_id constant bigint := test.chain();
  v_held bugle.held_job;
begin
  v_lacking := test.register('{b,c,chain}');
  perform test.equal((select count(*) from test.claim(v_lacking, 5)), 0::bigint,
    'not by one that lacks the first step');
  perform test.equal((select count(*) from bugle.queues_with_work(v_lacking, '{default}')), 0::bigint,
    'nor is it seen');
  perform test.equal((select u.steps from bugle.unserved u), '{a,b,c}'::text[], 'nobody serves it');
  assert (select e.reason = 'unserved' and e.message like '%does not have executors for all remaining steps: a, b, c.'
    from bugle.explain(v_id) e), 'explained';

  v_all := test.register('{a,b,c}');
  perform test.equal((select count(*) from bugle.unserved u), 0::bigint, 'now somebody does');
  perform test.equal((select count(*) from bugle.queues_with_work(v_all, '{default}')), 1::bigint, 'it is seen');
  v_held := test.running(v_all, v_id);
  perform test.start_step(v_all, v_held);
  perform test.finish_step(v_all, v_held, 1);
  perform test.give_back(v_all, v_held);
  perform test.dies(v_all);
  update bugle.registrations set backend_pid = pg_backend_pid() where id = v_lacking;
  perform test.equal((select count(*) from bugle.queues_with_work(v_lacking, '{default}')), 1::bigint,
    'the rest is seen by one that serves the rest');
  perform test.equal((select c.step from test.claim(v_lacking, 5) c), 1, 'and claimed');
end
$$;

rollback;
