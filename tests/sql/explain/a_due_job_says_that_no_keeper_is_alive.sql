begin;

do $$
declare
  v_worker constant bigint := test.register('{noop}', '{default}');
  v_scheduled constant bigint := test.job_in('scheduled', v_worker);
  v_retrying constant bigint := test.job_in('retrying', v_worker);
  v_waiting constant bigint := test.job_in('waiting', v_worker);
begin
  update bugle.keeping set ticked_at = now() - interval '5 minutes';
  perform test.equal(test.reasons(v_scheduled), '{scheduled}', 'not due');
  update bugle.jobs_live j set run_at = now() - interval '3 minutes' where j.id in (v_scheduled, v_retrying);
  update bugle.jobs_live j set answer_by = now() - interval '3 minutes' where j.id = v_waiting;

  perform test.equal(test.reasons(v_scheduled), '{no_keeper,scheduled}', 'the reason, and the state');
  perform test.explained(v_scheduled, 'no_keeper', 'It was due 3 min ago, but no worker has run maintenance for 5 min: '
    'nothing that is due is started.', 'Start a worker, of any queue: %');
  perform test.explained(v_scheduled, 'scheduled', 'It was scheduled to run 3 min ago.');
  perform test.explained(v_retrying, 'no_keeper', 'It was due 3 min ago%');
  perform test.explained(v_retrying, 'retrying', 'Attempt 1 of 16 failed (boom); the next one was due 3 min ago.');
  perform test.explained(v_waiting, 'no_keeper', 'It was due 3 min ago%');
  perform test.explained(v_waiting, 'waiting', '%; its time for one ended 3 min ago.');

  update bugle.keeping set keeper = v_worker, ticked_at = clock_timestamp();
  perform test.equal(test.reasons(v_scheduled), '{scheduled}', 'the keeper is alive: it is promoted soon');
  update bugle.registrations r set lost_at = now() where r.id = v_worker;
  perform test.equal(test.reasons(v_scheduled), '{no_keeper,scheduled,unserved}', 'the keeper was lost');
end
$$;

rollback;
