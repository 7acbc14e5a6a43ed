begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_overdue constant bugle.held_job := test.running(v_worker);
  v_patient constant bugle.held_job := test.running(v_worker);
  v_job bugle.jobs;
begin
  perform test.wait(v_worker, v_overdue, p_for => '0');
  perform test.wait(v_worker, v_patient, p_for => '1 microsecond');

  perform test.equal(bugle.expire(), 1, 'expired');

  v_job := test.job(v_overdue.id);
  perform test.equal(concat_ws(' ', v_job.state, v_job.reason, v_job.last_error_code),
    'failed answer_overdue answer_overdue', 'the row');
  assert v_job.last_error like 'no answer before %', 'it says until when it waited';
  perform test.equal((test.job(v_patient.id)).state, 'waiting', 'the other');
  perform test.refused(format('select bugle.resolve(%s)', v_overdue.id), 'JB031', '%is failed, not waiting');
end
$$;

rollback;
