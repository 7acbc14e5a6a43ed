begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b,c}');
  v_id constant bigint := test.chain(p_payload => '{"n": 1}');
  v_held constant bugle.held_job := test.running(v_worker, v_id);
  v_next record;
  v_job bugle.jobs;
begin
  select n.* into v_next from bugle.start_step(v_worker, test.nonce(v_worker), v_held) n;
  perform test.equal(v_next.position, 1, 'the first');
  perform test.equal(v_next.context, null::jsonb, 'nothing was put out yet');
  perform test.equal(v_next.default_timeout_seconds, 300::double precision, 'five minutes for a step');
  perform test.equal(test.steps(v_id), 'a running, b pending, c pending', 'steps');

  select n.* into v_next from bugle.finish_step(v_worker, test.nonce(v_worker), v_held, 1, 1, '{"x": 1, "y": 1}') n;
  perform test.equal(v_next.position, 2, 'the second');
  perform test.equal(v_next.context, '{"x": 1, "y": 1}'::jsonb, 'the context');
  select n.* into v_next from bugle.finish_step(v_worker, test.nonce(v_worker), v_held, 2, 1, '{"y": 2, "z": 2}') n;
  perform test.equal(v_next.context, '{"x": 1, "y": 2, "z": 2}'::jsonb, 'later outputs win');
  v_job := test.job(v_id);
  perform test.equal(v_job.step, 2, 'two are done');
  perform test.equal(v_job.context, v_next.context, 'kept in the row');
  perform test.equal((select r.step from bugle.running_jobs r), 'c', 'what runs');
  select n.* into v_next from bugle.finish_step(v_worker, test.nonce(v_worker), v_held, 3, 1, null) n;
  perform test.equal(v_next.position, null::integer, 'nothing is left');

  v_job := test.job(v_id);
  perform test.equal(v_job.state, 'completed', 'state');
  perform test.equal(v_job.result, '{"x": 1, "y": 2, "z": 2}'::jsonb, 'the result is the context');
  perform test.equal(v_job.payload, '{"n": 1}'::jsonb, 'the payload stays');
  perform test.equal(test.steps(v_id), 'a done, b done, c done', 'steps');
  assert (select bool_and(s.attempts = 1 and s.first_started_at <= s.last_ended_at and s.worker_name = 'tester'
    and s.host = 'host-1')
    from bugle.steps s where s.job = v_id), 'each step says how often, when and where';
end
$$;

rollback;
