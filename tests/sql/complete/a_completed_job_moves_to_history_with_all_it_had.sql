begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job;
  v_before jsonb;
  v_after jsonb;
begin
  v_held := test.running(v_worker, bugle.enqueue('noop', '{"a": 1}', p_priority => 4,
    p_deadline => now() + interval '1 hour',
    p_timeout => '1 minute', p_max_attempts => 9, p_retry_policy => 'fixed', p_headers => '{"h": 1}',
      p_run_at => now() - interval '1 hour'));
  update bugle.jobs_live j
  set crashes = 1, attempt = 3, last_error = 'boom', last_error_code = 'e1', progress = 0.5, progress_note = 'half',
    first_started_at = now() - interval '2 hours', started_at = now() - interval '1 minute',
    created_at = now() - interval '3 hours', updated_at = now() - interval '1 minute'
  where j.id = v_held.id;
  v_before := to_jsonb(test.job(v_held.id));

  perform test.equal(test.complete(v_worker, v_held, '{"sent": true}'), null, 'the verdict');

  v_after := to_jsonb(test.job(v_held.id));
  perform test.equal(v_after, v_before || jsonb_build_object('state', 'completed', 'result', '{"sent": true}'::jsonb,
    'finished_at', now(), 'updated_at', now(), 'day', (now() at time zone 'utc')::date), 'the row');
  perform test.equal((select count(*) from bugle.jobs_live), 0::bigint, 'it is not live any more');
end
$$;

rollback;
