begin;

do $$
declare
  v_job bugle.jobs;
begin
  v_job := test.job(bugle.enqueue('noop', p_run_at => now() + interval '1 microsecond'));
  perform test.equal(v_job.state, 'scheduled', 'due a moment from now');
  perform test.equal(v_job.run_at, now() + interval '1 microsecond', 'its time is kept');
  perform test.equal((test.job(bugle.enqueue('noop', p_run_at => now()))).state, 'ready', 'due now');
  perform test.equal((test.job(bugle.enqueue('noop', p_run_at => now() - interval '100 years'))).state, 'ready',
    'long due');
  perform test.equal((test.job(bugle.enqueue('noop', p_run_at => '9999-12-31'))).state, 'scheduled',
    'due in the year 9999');
end
$$;

rollback;
