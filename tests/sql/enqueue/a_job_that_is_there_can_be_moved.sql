begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_id constant bigint := bugle.enqueue('noop', '{"n": 1}', p_unique_key => 'k',
    p_deadline => now() + interval '1 day');
  v_job bugle.jobs;
begin
  perform bugle.enqueue('noop', '{"n": 2}', p_unique_key => 'k', p_on_conflict => 'move',
    p_run_at => now() + interval '1 hour');
  v_job := test.job(v_id);
  perform test.equal(v_job.state, 'scheduled', 'its state');
  perform test.equal(v_job.run_at, now() + interval '1 hour', 'its time');
  perform test.equal(v_job.payload, '{"n": 1}', 'its payload');

  perform test.refused($sql$select bugle.enqueue('noop', p_unique_key => 'k', p_on_conflict => 'move',
    p_run_at => now() + interval '2 days')$sql$,
    'JB001', 'job % cannot be moved to %: its deadline is %');

  perform bugle.enqueue('noop', p_unique_key => 'k', p_on_conflict => 'move');
  perform test.equal((test.job(v_id)).state, 'ready', 'without a time it is due now');

  perform bugle.pause(v_id);
  perform bugle.enqueue('noop', p_unique_key => 'k', p_on_conflict => 'move', p_run_at => now() + interval '1 hour');
  perform test.equal((test.job(v_id)).state, 'paused', 'a paused one stays paused');
  perform test.equal(bugle.resume(v_id), 'scheduled', 'and is scheduled when it is resumed');

  perform bugle.enqueue('noop', p_unique_key => 'k', p_on_conflict => 'move');
  perform test.running(v_worker, v_id);
  v_job := test.job(v_id);
  perform bugle.enqueue('noop', p_unique_key => 'k', p_on_conflict => 'move', p_run_at => now() + interval '1 hour');
  perform test.equal(test.job(v_id), v_job, 'a running one is left alone');
end
$$;

rollback;
