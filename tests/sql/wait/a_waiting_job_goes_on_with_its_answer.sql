begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job := test.running(v_worker);
  v_job bugle.jobs;
begin
  perform test.wait(v_worker, v_held, 'secret', '1 hour');
  perform test.refused(format('select bugle.resume_with(%s, ''1'', ''guess'')', v_held.id), 'JB032');
  perform bugle.resume_with(v_held.id, '{"yes": true}', 'secret');
  v_job := test.job(v_held.id);
  perform test.equal(concat_ws(' ', v_job.state, v_job.attempt, v_job.answer, v_job.answer_by),
    'ready 0 {"yes": true}', 'it is ready, the attempt not counted');
  perform bugle.resume_with(v_held.id, '{"yes": false}', 'secret');
  perform test.equal((test.job(v_held.id)).answer, '{"yes": true}', 'the first answer counts');
  perform test.refused(format('select bugle.resolve(%s, ''1'', ''secret'')', v_held.id), 'JB031');
  perform test.equal((select c.answer from test.claim(v_worker) c where c.id = v_held.id), '{"yes": true}',
    'its executor finds it');

  -- it may ask again
  select j.id, j.claim into v_held from bugle.jobs_live j where j.id = v_held.id;
  perform test.wait(v_worker, v_held, 'another');
  perform test.equal((test.job(v_held.id)).answer, null::jsonb, 'the old answer is forgotten');
  perform test.refused(format('select bugle.resume_with(%s, ''1'', ''secret'')', v_held.id), 'JB032');
  perform bugle.resume_with(v_held.id, null, 'another');
  perform test.equal((test.job(v_held.id)).answer, 'null', 'nothing is an answer too');
  perform test.refused(format('select bugle.resume_with(%s, ''1'')', bugle.enqueue('noop')), 'JB031',
    '%is ready, not waiting');
  perform test.refused('select bugle.resume_with(987654321, ''1'')', 'JB030');
  update bugle.settings set max_payload_bytes = 8192;
  perform test.refused(format('select bugle.resume_with(%s, to_jsonb(repeat(''x'', 10000)))', v_held.id), 'JB003');
end
$$;

rollback;
