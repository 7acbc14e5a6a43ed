begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker);
  v_job bugle.jobs;
begin
  perform test.equal(test.cancel_held(v_worker, v_held, 'nobody wants it'), null, 'the verdict');

  v_job := test.job(v_held.id);
  perform test.equal(concat_ws(' ', v_job.state, v_job.reason, v_job.last_error), 'cancelled executor nobody wants it',
    'the row');
  perform test.equal(v_job.finished_at, now(), 'finished_at');
  perform test.equal(test.cancel_held(v_worker, v_held, 'again'), 'repeated', 'said again');
end
$$;

rollback;
