begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker);
  v_job bugle.jobs;
begin
  perform test.equal(test.give_back(v_worker, v_held), null, 'the verdict');

  v_job := test.job(v_held.id);
  perform test.equal(concat_ws(' ', v_job.state, v_job.attempt, v_job.claim, v_job.crashes), 'ready 0 1 0', 'the row');
  perform test.equal(test.give_back(v_worker, v_held), 'repeated', 'said again');
  perform test.equal((test.job(v_held.id)).attempt, 0, 'and not returned twice');
end
$$;

rollback;
