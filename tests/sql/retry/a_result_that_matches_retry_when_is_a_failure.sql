begin;

do $$
declare
  v_worker constant bigint := test.register('{noop,poll}');
  v_held bugle.held_job;
  v_job bugle.jobs;
begin
  insert into bugle.commands (name, retry_when, max_attempts)
  values ('poll', '$.status == "busy" || exists($.again)', 3);

  v_held := test.running(v_worker, bugle.enqueue('poll'));
  perform test.equal(test.complete(v_worker, v_held, '{"status": "busy"}'), 'retry_when', 'the verdict');
  select j.* into v_job from bugle.jobs j where j.id = v_held.id;
  perform test.equal(concat_ws(' ', v_job.state, v_job.attempt, v_job.last_error_code), 'retrying 1 retry_when',
    'state');
  perform test.equal(v_job.last_error,
    'the result matches retry_when: ($."status" == "busy" || exists ($."again"))', 'the error');
  perform test.equal((select concat_ws(' ', a.outcome, a.code) from bugle.attempts a where a.job = v_held.id),
    'failed retry_when', 'the attempt');
  perform test.equal(test.complete(v_worker, v_held, '{"status": "busy"}'), 'retry_when', 'the same call again');

  perform bugle.reschedule(v_held.id, now());
  v_held := test.running(v_worker, v_held.id);
  perform test.equal(test.complete(v_worker, v_held, '{"status": "done"}'), null, 'another result completes it');

  -- in one batch: completed, retried, and failed for good, with its result
  perform bugle.enqueue('poll', '1'), bugle.enqueue('poll', '2'), bugle.enqueue('poll', '3', p_max_attempts => 1),
    bugle.enqueue('noop', '4');
  perform test.equal((
      select string_agg(v.verdict, ' ' order by v.id)
      from bugle.complete(v_worker, test.nonce(v_worker), array(
        select (c.id, c.claim, case c.payload when '1' then '{"status": "ok"}' else '{"status": "busy"}' end)
          ::bugle.finished_job
        from test.claim(v_worker, 9) c)) v),
    'retry_when retry_when', 'two of four');
  perform test.equal((
      select string_agg(concat_ws(' ', j.state, j.reason, j.result ->> 'status'), ', ' order by j.id)
      from bugle.jobs j
      where j.id > v_held.id),
    'completed ok, retrying, failed attempts_exhausted busy, completed busy', 'each as it should be');
end
$$;

rollback;
