begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker, bugle.enqueue('noop', p_timeout => '1 minute'));
begin
  perform bugle.enqueue('noop');
  perform bugle.report_progress(v_worker, test.nonce(v_worker), v_held, 0.5, 'half');
  update bugle.jobs_live j set started_at = now() - interval '10 seconds' where j.id = v_held.id;

  perform test.equal((select jsonb_agg(to_jsonb(r)) from bugle.running_jobs r), jsonb_build_array(jsonb_build_object(
    'id', v_held.id, 'command', 'noop', 'queue', 'default', 'attempt', 1, 'claim', 1, 'worker', v_worker,
      'worker_name', 'tester', 'host', 'host-1',
    'started_at', now() - interval '10 seconds', 'running_for', '00:00:10', 'timeout', '00:01:00', 'progress', 0.5,
      'progress_note', 'half', 'step', null)), 'running');
end
$$;

rollback;
