begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker);
  v_job bugle.jobs;
begin
  perform test.equal(test.wait(v_worker, v_held, 'secret', '1 hour'), null, 'the verdict');
  v_job := test.job(v_held.id);
  perform test.equal(concat_ws(' ', v_job.state, v_job.attempt, v_job.answer_token = bugle.token_hash('secret')),
    'waiting 1 t', 'the row');
  perform test.equal(v_job.answer_by, now() + interval '1 hour', 'answer_by');

  perform bugle.resolve(v_held.id, '{"paid": true}', 'secret');

  v_job := test.job(v_held.id);
  perform test.equal(v_job.state, 'completed', 'state');
  perform test.equal(v_job.result, '{"paid": true}', 'result');
  perform test.equal(v_job.finished_at, now(), 'finished_at');
end
$$;

rollback;
