begin;

do $$
declare
  v_id bigint;
  v_job bugle.jobs;
begin
  insert into bugle.jobs (command) values ('noop') returning id into v_id;

  v_job := test.job(v_id);
  perform test.equal(
    jsonb_strip_nulls(to_jsonb(v_job) - '{id,run_at,enqueued_by,enqueued_from,created_at,updated_at}'::text[]),
    jsonb_build_object(
    'state', 'ready', 'command', 'noop', 'payload', '{}'::jsonb, 'queue', 'default', 'priority', 0,
    'attempt', 0, 'crashes', 0, 'claim', 0), 'the defaults');
  assert v_job.run_at = now() and v_job.created_at = now() and v_job.updated_at = now(), 'a new job is due now';
end
$$;

rollback;
