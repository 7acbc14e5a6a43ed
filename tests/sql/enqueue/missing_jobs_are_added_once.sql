begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_jobs constant jsonb := '[{"key": "1", "payload": {"n": 1}, "queue": "q", "priority": 3}, {"key": "2"}, {"key": '
    '"3", "run_at": "2999-01-01"}, {"key": "2", "payload": "again"}]';
  v_job bugle.jobs;
begin
  perform bugle.enqueue('noop', p_unique_key => '3');
  perform test.equal(bugle.add_missing('noop', v_jobs), 2::bigint, 'all but the one that lives');
  perform test.equal(bugle.add_missing('noop', v_jobs), 0::bigint, 'none the second time');

  select j.* into v_job from bugle.jobs j where j.unique_key = '1';
  perform test.equal(concat_ws(' ', v_job.command, v_job.payload, v_job.queue, v_job.priority, v_job.idempotency_key),
    'noop {"n": 1} q 3 1', 'as told');
  select j.* into v_job from bugle.jobs j where j.unique_key = '2';
  perform test.equal(concat_ws(' ', v_job.payload, v_job.queue, v_job.state), '{} default ready',
    'the first of two counts');
  perform test.equal((select count(*) from bugle.changes c where c.verb = 'add_missing'), 2::bigint,
    'each is recorded');

  perform test.complete(v_worker, test.running(v_worker, v_job.id));
  perform test.equal(bugle.add_missing('noop', v_jobs), 0::bigint, 'nor after it was done');
  update bugle.idempotency_keys k set expires_at = now();
  perform test.equal(bugle.add_missing('noop', v_jobs), 1::bigint, 'but when its key has expired');
  perform test.equal(bugle.add_missing('noop', '[]'), 0::bigint, 'none of none');
  perform test.equal(bugle.add_missing('import', '[{"key": "a", "steps": ["fetch", "upload"]}, {"key": "b"}]'),
    2::bigint, 'a chain, and none');
  perform test.equal((select string_agg(coalesce(j.steps::text, 'none'), ' ' order by j.unique_key) from bugle.jobs j
    where j.command = 'import'),
    '{fetch,upload} none', 'the steps are its own');

  perform test.refused($sql$select bugle.add_missing('noop', '{"key": "1"}')$sql$, 'JB001',
    'p_jobs must be a JSON array, not object');
  perform test.refused($sql$select bugle.add_missing('noop', '[{"key": "4"}, {"payload": 1}]')$sql$, 'JB001',
    'each of p_jobs must have a "key"%: %payload%');
  perform test.refused($sql$select bugle.add_missing('noop', '[{"key": "4", "max_attempts": 0}]')$sql$, 'JB001',
    'column "max_attempts"%');
  perform test.refused($sql$select bugle.add_missing('noop', '[{"key": "4", "steps": []}]')$sql$, 'JB001',
    'column "steps"%');
  perform test.refused($sql$select bugle.add_missing('', '[{"key": "4"}]')$sql$, 'JB001', 'column "command"%');
  perform test.refused($sql$select bugle.add_missing(null, '[{"key": "4"}]')$sql$, 'JB001',
    'p_command must not be null');
end
$$;

rollback;
