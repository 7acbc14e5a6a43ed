begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b}');
  v_held constant bugle.held_job := test.running(v_worker, test.chain('{a,b}'));
  v_before bugle.jobs;
begin
  perform test.start_step(v_worker, v_held);
  perform test.equal(test.start_step(v_worker, v_held), 1, 'starting can be repeated');
  perform test.equal((select s.attempts from bugle.steps s where s.job = v_held.id and s.position = 1), 1,
    'and is one try');
  perform test.equal(test.finish_step(v_worker, v_held, 1, '{"x": 1}'), null, 'the first word');
  v_before := test.job(v_held.id);
  perform test.equal(test.finish_step(v_worker, v_held, 1, '{"x": 2}'), 'repeated', 'the second');
  perform test.equal(test.job(v_held.id), v_before, 'changes nothing');
  perform test.equal((select n.position from bugle.finish_step(v_worker, test.nonce(v_worker), v_held, 1, 1, null) n),
    2, 'and says what is next');

  perform test.equal(test.finish_step(v_worker, v_held, 2), null, 'the last step');
  perform test.equal(test.finish_step(v_worker, v_held, 2), 'repeated', 'again, when the job is completed');
  perform test.equal((select count(*) from bugle.jobs j where j.id = v_held.id), 1::bigint, 'once');
end
$$;

rollback;
