begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_id constant bigint := bugle.enqueue('noop', '{"a": 1}', p_priority => 3, p_timeout => '90 seconds',
    p_max_attempts => 7,
    p_headers => '{"h": 1}', p_run_at => now() - interval '1 hour');
begin
  perform test.equal((select jsonb_strip_nulls(to_jsonb(c)) - 'address' from test.claim(v_worker) c),
    jsonb_build_object(
    'id', v_id, 'claim', 1, 'command', 'noop', 'queue', 'default', 'priority', 3, 'attempt', 1, 'max_attempts', 7,
    'timeout_seconds', 90, 'created_at', now(), 'run_at', now() - interval '1 hour', 'headers', '{"h": 1}'::jsonb,
    'payload', '{"a": 1}'::jsonb), 'the claimed job');
end
$$;

rollback;
