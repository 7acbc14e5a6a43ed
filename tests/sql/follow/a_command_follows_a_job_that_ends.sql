begin;

do $$
declare
  v_worker constant bigint := test.register(p_queues => '{default,q}');
  v_held bugle.held_job;
  v_next bugle.jobs;
begin
  v_held := test.running(v_worker, bugle.enqueue('noop', p_headers => '{"trace": "1"}', p_on_success => 'thank',
    p_on_failure => 'complain'));
  perform test.complete(v_worker, v_held, '{"n": 1}');
  perform test.complete(v_worker, v_held, '{"n": 1}');
  perform test.equal((select count(*) from bugle.jobs_live j where j.command in ('thank', 'complain')), 1::bigint,
    'once');
  select j.* into v_next from bugle.jobs_live j where j.command = 'thank';
  perform test.equal(v_next.payload, jsonb_build_object('job', v_held.id, 'state', 'completed', 'reason', null,
    'command', 'noop', 'queue', 'default', 'result', '{"n": 1}'::jsonb, 'error', null), 'it is told what ended');
  perform test.equal(v_next.headers, '{"trace": "1"}', 'with its headers');

  v_held := test.running(v_worker, bugle.enqueue('noop', p_on_success => 'thank', p_on_failure => 'complain'));
  perform test.fail(v_worker, v_held, 'boom', p_retryable => false);
  select j.* into v_next from bugle.jobs_live j where j.command = 'complain';
  perform test.equal(v_next.payload - 'job',
    '{"state": "failed", "reason": "not_retryable", "command": "noop", "queue": "default", "result": null, "error": '
    '"boom"}', 'or what failed');

  v_held := test.running(v_worker, bugle.enqueue('noop', p_on_success => 'thank', p_on_failure => 'complain'));
  perform test.fail(v_worker, v_held);
  perform bugle.cancel(v_held.id);
  perform test.equal((select count(*) from bugle.jobs_live j where j.command in ('thank', 'complain')), 2::bigint,
    'neither a retry nor a cancelled job is followed');
  insert into bugle.jobs (command, queue, on_failure, deadline)
    values ('noop', 'q', 'overdue', now() + interval '1 hour');
  update bugle.jobs_live j set deadline = now() where j.on_failure = 'overdue';
  perform bugle.expire();
  perform test.equal((select j.queue from bugle.jobs_live j where j.command = 'overdue'), 'q',
    'in the queue of the job it follows');
end
$$;

rollback;
