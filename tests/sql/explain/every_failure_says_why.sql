begin;

do $$
declare
  v_worker constant bigint := test.register('{noop,a,b}', '{default}', 100);
  v_held bugle.held_job;
  v_id bigint;
  v_other bigint;
  v_workflow jsonb;
begin
  v_held := test.running(v_worker, bugle.enqueue('noop', p_max_attempts => 1));
  perform test.fail(v_worker, v_held, e'Traceback\n  line 1\nprovider is down\n');
  perform test.explained(v_held.id, 'attempts_exhausted',
    'It failed % ago after 1 attempt: no attempt is left; the last error: provider is down.',
    format('select bugle.restart(%s); runs it again, from attempt 0.', v_held.id));

  v_held := test.running(v_worker, bugle.enqueue('noop', p_max_attempts => 1));
  perform test.fail(v_worker, v_held, 'not finished within 5s', 'timeout');
  perform test.explained(v_held.id, 'timeout', '%: its last attempt took too long; the last error: not finished %');

  v_held := test.running(v_worker);
  perform test.fail(v_worker, v_held, p_retryable => false);
  perform test.explained(v_held.id, 'not_retryable', '%: its executor reported that a retry would not help; %');

  v_id := bugle.enqueue('noop', p_queue => 'unserved', p_deadline => now() + interval '1 hour');
  update bugle.jobs_live j set deadline = now() where j.id = v_id;
  perform bugle.expire();
  perform test.explained(v_id, 'deadline', 'It failed % ago after 0 attempts: it was not started before its deadline%');

  update bugle.settings set crash_limit = 1, lost_grace = '1 second';
  v_id := bugle.enqueue('noop', p_queue => 'doomed');
  v_other := test.register('{noop}', '{doomed}');
  perform test.claim(v_other, 1, 'doomed');
  update bugle.registrations r set lost_at = now() - interval '1 minute' where r.id = v_other;
  perform bugle.rescue();
  perform test.explained(v_id, 'crash_loop', '%: its workers were lost repeatedly while running it; %');

  v_held := test.running(v_worker);
  perform test.wait(v_worker, v_held, null, '1 hour');
  update bugle.jobs_live j set answer_by = now() where j.id = v_held.id;
  perform bugle.expire();
  perform test.explained(v_held.id, 'answer_overdue', '%: no answer came in time%');

  v_held := test.running(v_worker);
  perform test.wait(v_worker, v_held);
  perform bugle.reject(v_held.id, 'refused by the bank');
  perform test.explained(v_held.id, 'rejected', '%: its answer was an error; the last error: refused by the bank.');

  v_id := bugle.enqueue('nobody', p_queue => 'unserved');
  update bugle.settings set unserved_limit = '10 minutes';
  update bugle.jobs_live j set updated_at = now() - interval '1 hour' where j.id = v_id;
  perform bugle.expire();
  update bugle.unserved_routes u set since = now() - interval '10 minutes';
  perform bugle.expire();
  perform test.explained(v_id, 'no_executor', '%: no worker served it in time; %');

  v_workflow := test.workflow('{"a": {}, "b": {"after": ["a"]}}');
  v_id := (v_workflow ->> 'b')::bigint;
  perform bugle.cancel((v_workflow ->> 'a')::bigint);
  perform test.explained(v_id, 'dependency_failed', '%: a job it needed did not complete%');

  v_held := test.running(v_worker, test.chain('{a,b}'));
  perform test.start_step(v_worker, v_held);
  perform test.retry_step(v_worker, v_held, 0, p_try => 4);
  perform test.fail(v_worker, v_held);
  perform test.explained(v_held.id, 'step_failed', '%: a step failed and has no attempts left; in step 1 of 2 (a)%',
    '%p_from_failed_step => true);%');

  v_id := bugle.enqueue('noop');
  perform bugle.set_state(v_id, 'failed', 'not wanted');
  perform test.explained(v_id, 'operator', '%: an operator failed it%');
end
$$;

rollback;
