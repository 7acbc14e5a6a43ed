begin;

update bugle.settings set lost_grace = '0';

do $$
declare
  v_lost constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_lost);
  v_job bugle.jobs;
begin
  perform test.dies(v_lost);

  perform test.equal(bugle.note_lost(0), 1, 'lost workers');
  perform test.equal(bugle.rescue(), 1, 'rescued jobs');

  v_job := test.job(v_held.id);
  perform test.equal(concat_ws(' ', v_job.state, v_job.attempt, v_job.crashes, v_job.claim, v_job.last_error_code),
    'ready 1 1 1 worker_lost', 'the row');
  perform test.equal(v_job.last_error, format('worker %s was lost while it ran this job', v_lost), 'last_error');
  perform test.equal((select concat_ws(' ', a.attempt, a.worker, a.code) from bugle.attempts a where a.job = v_held.id),
    format('1 %s worker_lost', v_lost), 'the attempt is on record');
  perform test.equal(bugle.note_lost(0), 0, 'noted once');
  perform test.equal(bugle.rescue(), 0, 'rescued once');
end
$$;

rollback;
