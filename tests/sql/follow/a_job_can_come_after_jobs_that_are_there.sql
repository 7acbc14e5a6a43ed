begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_done constant bigint := test.job_in('completed', v_worker);
  v_failed constant bigint := test.job_in('failed', v_worker);
  v_paused constant bigint := test.job_in('paused', v_worker);
  v_id bigint;
begin
  v_id := bugle.enqueue_after(array[v_done, v_paused], 'noop', '{"n": 1}', p_columns => '{"priority": 3}');
  perform test.equal((select concat_ws(' ', j.state, j.outstanding, j.payload, j.priority) from test.job(v_id) j),
    'waiting 1 {"n": 1} 3', 'for the one that has not ended');
  perform bugle.cancel(v_paused);
  perform test.equal((test.job(v_id)).reason, 'dependency_failed', 'a job that came later');

  perform test.equal((test.job(bugle.enqueue_after(array[v_done], 'noop'))).state, 'ready', 'nothing to wait for');
  perform test.equal((test.job(bugle.enqueue_after('{}', 'noop'))).state, 'ready', 'nobody at all');
  v_id := bugle.enqueue_after(array[v_failed], 'noop');
  perform test.equal((select concat_ws(' ', j.state, j.reason) from test.job(v_id) j), 'failed dependency_failed',
    'as if it had waited');
  v_id := bugle.enqueue_after(array[v_failed, v_done], 'noop', p_on_failure => 'run');
  perform test.equal((test.job(v_id)).state, 'ready', 'all the same');
  perform test.equal((select string_agg(concat_ws(' ', r.state, r.reason), ', ' order by r.job)
    from bugle.results_of(v_id) r), 'completed, failed not_retryable', 'and it can see how they ended');
  perform test.refused('select bugle.enqueue_after(array[987654321], ''noop'')', 'JB030', 'there is no job 987654321');
  perform test.refused(format('select bugle.enqueue_after(array[%s], ''noop'', p_on_failure => ''maybe'')', v_done),
    'JB040');
  perform test.refused(format('select bugle.enqueue_after(array[%s], '''')', v_done), 'JB001');
end
$$;

rollback;
