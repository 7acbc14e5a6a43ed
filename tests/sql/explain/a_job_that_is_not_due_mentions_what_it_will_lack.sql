begin;

do $$
declare
  v_worker constant bigint := test.register('{noop}', '{default}');
  v_scheduled constant bigint := bugle.enqueue('noop', p_queue => 'nobody', p_run_at => now() + interval '1 hour');
  v_retrying constant bigint := test.job_in('retrying', v_worker);
begin
  perform test.equal(test.reasons(v_scheduled), '{scheduled,unserved}', 'no worker');
  perform test.explained(v_scheduled, 'unserved', 'No live worker serves its queue ''nobody''.',
    '%: the job starts when it is due.');
  perform test.equal(test.reasons(v_retrying), '{retrying}', 'it lacks nothing');

  perform bugle.pause_queue('default');
  perform test.equal(test.reasons(v_retrying), '{retrying,queue_paused}', 'a paused queue');
  perform bugle.pause_worker(v_worker);
  perform test.equal(test.reasons(v_retrying), '{retrying,queue_paused,worker_paused}', 'and a paused worker');
end
$$;

rollback;
