begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_old bigint;
  v_other bigint;
  v_cancelled bigint;
begin
  -- enqueued long ago, failed just now
  v_old := test.job_in('failed', v_worker);
  update bugle.jobs j set created_at = now() - interval '7 hours', last_error = 'no route to 10.0.0.1',
    last_error_code = 'net' where j.id = v_old and j.state = 'failed';
  v_other := test.job_in('failed', v_worker);
  update bugle.jobs j set finished_at = now() - interval '2 hours' where j.id = v_other and j.state = 'failed';
  v_cancelled := test.job_in('cancelled', v_worker);

  perform test.equal(array(select bugle.jobs_matching('restart', p_since => '1 hour', p_state => 'failed')),
    array[v_other], 'by when it was enqueued');
  perform test.equal(array(select bugle.jobs_matching('restart', p_ended_since => '1 hour', p_state => 'failed')),
    array[v_old], 'by when it ended');
  perform test.equal(array(select bugle.jobs_matching('restart', p_code => 'net')), array[v_old], 'by code');
  perform test.equal(array(select bugle.jobs_matching('restart', p_fingerprint => 'no route to #')), array[v_old],
    'by kind of error');
  perform test.equal(array(select bugle.jobs_matching('restart', p_reason => 'operator')), array[v_cancelled],
    'by reason');
  perform test.equal((select c.jobs from bugle.count_matching('restart', p_reason => 'not_retryable') c), 2::bigint,
    'counted');
  perform test.equal(bugle.restart_where(p_ended_since => '1 hour', p_state => 'failed', p_code => 'net',
    p_fingerprint => 'no route to #', p_reason => 'not_retryable'), 1::bigint, 'all of them');
  perform test.equal((select j.state from bugle.job(v_old) j), 'ready', 'restarted');
end
$$;

rollback;
