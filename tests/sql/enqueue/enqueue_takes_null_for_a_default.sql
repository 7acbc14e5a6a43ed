begin;

do $$
declare
  v_job constant bugle.jobs := test.job(bugle.enqueue('noop', p_payload => null, p_queue => null, p_priority => null,
    p_run_at => null));
begin
  perform test.equal(v_job.payload, '{}', 'payload');
  perform test.equal(v_job.queue, 'default', 'queue');
  perform test.equal(v_job.priority, 0, 'priority');
  perform test.equal(v_job.run_at, now(), 'run_at');
  perform test.refused($sql$select bugle.enqueue(null)$sql$, 'JB001', 'column "command" must not be null');
  perform test.refused($sql$select bugle.enqueue(' ')$sql$, 'JB001', 'column "command"%');
end
$$;

rollback;
