begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_id constant bigint := bugle.enqueue('noop');
  v_before constant bugle.jobs := test.job(v_id);
  v_job bugle.jobs;
begin
  update bugle.jobs_live j set updated_at = now() - interval '1 hour', progress = 1,
    progress_note = 'of the last attempt' where j.id = v_id;
  perform test.running(v_worker, v_id);

  v_job := test.job(v_id);
  perform test.equal(concat_ws(' ', v_job.state, v_job.attempt, v_job.claim, v_job.crashes), 'running 1 1 0',
    'the row');
  perform test.equal(v_job.worker, v_worker, 'worker');
  assert v_job.started_at >= now() and v_job.first_started_at >= now() and v_job.updated_at = now(),
    'it says when it started';
  assert v_job.progress is null and v_job.progress_note is null, 'progress starts over';
  perform test.equal(v_job.created_at, v_before.created_at, 'created_at');
end
$$;

rollback;
