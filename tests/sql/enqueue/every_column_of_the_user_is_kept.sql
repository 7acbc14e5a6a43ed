begin;

do $$
declare
  v_id bigint;
begin
  insert into bugle.jobs (command, payload, queue, priority, run_at, deadline, timeout, max_attempts, retry_policy,
    headers)
  values ('send_mail', '{"to": ["a"]}', 'mail', -7, now() - interval '1 hour', now() + interval '1 day', '5 minutes',
    3, 'fixed', '{"trace": "1"}')
  returning id into v_id;

  perform test.equal(to_jsonb(test.job(v_id)) - '{id,created_at,updated_at}'::text[], to_jsonb(test.job(bugle.enqueue(
      p_command => 'send_mail', p_payload => '{"to": ["a"]}', p_queue => 'mail', p_priority => -7,
      p_run_at => now() - interval '1 hour', p_deadline => now() + interval '1 day', p_timeout => '5 minutes',
      p_max_attempts => 3, p_retry_policy => 'fixed',
        p_headers => '{"trace": "1"}'))) - '{id,created_at,updated_at}'::text[],
    'insert and enqueue() store the same');
  perform test.equal(
    jsonb_strip_nulls(to_jsonb(test.job(v_id)) - '{id,created_at,updated_at,attempt,crashes,claim}'::text[]),
    jsonb_build_object('state', 'ready', 'command', 'send_mail', 'payload', '{"to": ["a"]}'::jsonb, 'queue', 'mail',
      'priority', -7,
      'run_at', now() - interval '1 hour', 'deadline', now() + interval '1 day', 'timeout', '00:05:00', 'max_attempts',
        3,
      'retry_policy', 'fixed', 'headers', '{"trace": "1"}'::jsonb), 'what was inserted is there');
end
$$;

rollback;
