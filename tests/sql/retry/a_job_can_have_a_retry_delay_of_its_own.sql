begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job;
  v_policy bugle.retry_policies;
begin
  insert into bugle.jobs (command, retry_delay) values ('noop', '1 minute');
  select c.id, c.claim into v_held from test.claim(v_worker) c;
  assert (select e.message like 'It has been running for %, attempt 1 of 16.' from bugle.explain(v_held.id) e),
    'explained';
  perform test.equal((select e.facts ->> 'retry_delay' from bugle.explain(v_held.id) e), '00:01:00', 'with its delay');
  perform test.equal((select e.facts ->> 'retry_policy' from bugle.explain(v_held.id) e), 'default', 'and its policy');

  perform test.fail(v_worker, v_held);

  perform test.equal((test.job(v_held.id)).state, 'retrying', 'the job');
  assert (test.job(v_held.id)).run_at - now() between interval '54 seconds' and interval '66 seconds',
    'its own delay, with jitter';

  -- growth and number of attempts are the policy's; a cap that is lower than the delay is raised to it
  v_policy := bugle.policy_of(test.job(v_held.id));
  perform test.equal(bugle.backoff(v_policy, 2, now(), now(), 0.5) - now(), interval '2 minutes', 'the second retry');
  perform test.equal(bugle.attempts_allowed(v_policy), 16, 'attempts');
  v_policy := bugle.policy_of(jsonb_populate_record(test.job(v_held.id), '{"retry_delay": "2 hours"}'));
  perform test.equal(bugle.backoff(v_policy, 5, now(), now(), 0.5) - now(), interval '2 hours',
    'beyond the cap of the policy');

  -- it is kept in history, and when the job is restarted
  perform bugle.cancel(v_held.id);
  perform test.equal((test.job(v_held.id)).retry_delay, interval '1 minute', 'in history');
  perform bugle.restart(v_held.id);
  perform test.equal((test.job(v_held.id)).retry_delay, interval '1 minute', 'restarted');

  perform test.refused($x$insert into bugle.jobs (command, retry_delay) values ('noop', '-1 second')$x$, 'JB001');
  perform test.refused($x$insert into bugle.jobs (command, retry_delay) values ('noop', '11 years')$x$, 'JB001');
  insert into bugle.jobs (command, retry_delay) values ('noop', '0');
  perform bugle.enqueue_job('{"command": "noop", "retry_delay": "5 seconds"}');
end
$$;

rollback;
