begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job := test.running(v_worker);
  v_child bigint;
begin
  perform bugle.spawn(v_worker, test.nonce(v_worker), v_held,
    '{"jobs": {"a": {"command": "noop"}, "b": {"command": "noop", "after": ["a"]}}}');
  select j.id into v_child from bugle.jobs_live j where j.parent = v_held.id and j.state = 'ready';
  perform test.fail(v_worker, test.running(v_worker, v_child), p_retryable => false);
  perform test.equal((test.job(v_held.id)).state, 'ready', 'all have ended');
  perform test.equal((select string_agg(concat_ws(' ', r.name, r.state, r.reason), ', ' order by r.name)
    from bugle.results_of(v_held.id) r),
    'a failed not_retryable, b failed dependency_failed', 'the one because of the other');
end
$$;

rollback;
