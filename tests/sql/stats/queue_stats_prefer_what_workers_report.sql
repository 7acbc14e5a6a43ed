begin;

do $$
declare
  v_worker constant bigint := test.register('{noop}', '{default}', 5);
  v_nonce constant uuid := test.nonce(v_worker);
  v_none constant bigint[] := array_fill(0::bigint, array[21]);
begin
  perform test.complete(v_worker, test.running(v_worker));
  perform test.equal((select q.completed_last_minute from bugle.queue_stats q), 1::bigint, 'counted in history');

  perform bugle.report_minutes(v_worker, v_nonce, array[
    ('default', 'noop', 500, 7, 0, 1, 1, v_none, v_none)::bugle.minute_report]);
  -- the minute may have passed since this transaction began
  update bugle.minutes set minute = date_trunc('minute', now());
  perform test.equal((select q.completed_last_minute from bugle.queue_stats q), 500::bigint, 'reported');
  perform test.equal((select q.failed_last_minute from bugle.queue_stats q), 7::bigint, 'failed attempts too');
end
$$;

rollback;
