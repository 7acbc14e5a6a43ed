begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b}');
  v_held bugle.held_job := test.running(v_worker, test.chain('{a,b}'));
begin
  perform test.start_step(v_worker, v_held);
  perform test.wait(v_worker, v_held, 'secret');
  perform test.equal(test.steps(v_held.id), 'a waiting, b pending', 'steps');
  perform test.refused(format($s$select bugle.resolve(%s, '{"yes": true}', 'wrong')$s$, v_held.id), 'JB032');
  perform bugle.resolve(v_held.id, '{"yes": true}', 'secret');
  perform test.equal(concat_ws(' ', (test.job(v_held.id)).state, (test.job(v_held.id)).attempt,
    (test.job(v_held.id)).context), 'ready 0 {"yes": true}', 'it goes on');
  perform test.equal(test.steps(v_held.id), 'a done, b pending', 'steps');

  v_held := test.running(v_worker, v_held.id);
  perform test.equal(test.start_step(v_worker, v_held), 2, 'with the next step');
  perform test.wait(v_worker, v_held);
  perform bugle.resolve(v_held.id, '"sure"');
  perform test.equal(concat_ws(' ', (test.job(v_held.id)).state, (test.job(v_held.id)).result),
    'completed {"b": "sure", "yes": true}', 'the last answer completes it');

  v_held := test.running(v_worker, test.chain('{a,b}'));
  perform test.start_step(v_worker, v_held);
  perform test.wait(v_worker, v_held);
  perform bugle.reject(v_held.id, 'no');
  perform test.equal(concat_ws(' ', (test.job(v_held.id)).state, (test.job(v_held.id)).reason), 'failed rejected',
    'a rejected step');
end
$$;

rollback;
