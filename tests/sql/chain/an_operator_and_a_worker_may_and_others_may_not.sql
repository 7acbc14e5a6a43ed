begin;

do $$
declare
  v_id constant bigint := test.chain();
begin
  set local role bugle_operator;
  perform bugle.set_step(v_id, 1, 'done');
  perform bugle.set_step(v_id, 'b', 'skipped');
  perform test.refused(format('select * from bugle.steps where job = %s', v_id), '42501');
  set local role bugle_viewer;
  perform test.equal(test.steps(v_id), 'a done, b skipped, c pending', 'a viewer reads');
  perform test.refused(format($s$select bugle.set_step(%s, 1, 'pending')$s$, v_id), '42501');
  perform test.refused('select * from bugle.step_records', '42501');
  perform test.refused('select * from bugle.chains', '42501');
  set local role bugle_enqueuer;
  perform test.refused(format($s$select bugle.set_step(%s, 1, 'pending')$s$, v_id), '42501');
  insert into bugle.jobs (command, steps) values ('chain', '{a}');
  set local role bugle_worker;
  perform test.refused(format($s$select bugle.set_step(%s, 1, 'pending')$s$, v_id), '42501');
  reset role;
end
$$;

rollback;
