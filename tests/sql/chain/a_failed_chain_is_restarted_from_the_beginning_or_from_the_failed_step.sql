begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b,c}');
  v_held bugle.held_job;
  v_ids bigint[] := '{}';
begin
  for v_n in 1 .. 4 loop
    v_held := test.running(v_worker, test.chain());
    perform test.start_step(v_worker, v_held);
    perform test.finish_step(v_worker, v_held, 1, '{"x": 1}');
    perform test.fail(v_worker, v_held);
    v_ids := v_ids || v_held.id;
  end loop;

  perform bugle.restart(v_ids[1]);
  perform test.equal(concat_ws(' ', (test.job(v_ids[1])).state, (test.job(v_ids[1])).step,
    (test.job(v_ids[1])).context), 'ready', 'from the beginning');
  perform test.equal(test.steps(v_ids[1]), 'a pending, b pending, c pending', 'nothing is done');
  assert (select bool_and(s.attempts = 1) from bugle.steps s where s.job = v_ids[1] and s.position < 3),
    'what was tried is kept';
  v_held := test.running(v_worker, v_ids[1]);
  perform test.equal(test.start_step(v_worker, v_held), 1, 'the first step');

  perform bugle.restart(v_ids[2], 'fixed', true);
  perform test.equal(concat_ws(' ', (test.job(v_ids[2])).state, (test.job(v_ids[2])).step,
    (test.job(v_ids[2])).context), 'ready 1 {"x": 1}', 'from the failed step');
  v_held := test.running(v_worker, v_ids[2]);
  perform test.equal(test.start_step(v_worker, v_held), 2, 'the second step');

  perform test.equal((select o.done from bugle.restart(array[v_ids[3]], p_from_failed_step => true) o), true, 'many');
  perform test.equal((test.job(v_ids[3])).step, 1, 'from the failed step');
  perform test.equal(bugle.restart_where(p_command => 'chain', p_from_failed_step => true), 1::bigint, 'by a filter');
  perform test.equal((test.job(v_ids[4])).step, 1, 'from the failed step');
end
$$;

rollback;
