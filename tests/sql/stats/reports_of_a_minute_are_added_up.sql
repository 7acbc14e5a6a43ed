begin;

do $$
declare
  v_worker constant bigint := test.register('{noop}', '{default}', 5);
  v_nonce constant uuid := test.nonce(v_worker);
  v_none constant bigint[] := array_fill(0::bigint, array[21]);
  v_run bigint[] := v_none;
  v_row record;
begin
  v_run[1] := 90;
  v_run[10] := 10;
  perform bugle.report_minutes(v_worker, v_nonce, array[
    ('default', 'noop', 80, 20, 0, 5.5, 0, v_run, v_none)::bugle.minute_report]);
  perform bugle.report_minutes(v_worker, v_nonce, array[
    ('default', 'noop', 20, 0, 3, 1, 0, v_none, v_none)::bugle.minute_report]);

  select * into v_row from bugle.minute_stats m where m.queue = 'default' and m.command = 'noop';
  perform test.equal(v_row.completed, 100::bigint, 'completed');
  perform test.equal(v_row.failed, 20::bigint, 'failed');
  perform test.equal(v_row.others, 3::bigint, 'others');
  perform test.equal(v_row.run_seconds, 6.5::double precision, 'run seconds');
  perform test.equal(round(v_row.failure_rate::numeric, 4), 0.1667, 'failure rate');
  perform test.equal(v_row.run_p50_seconds < 0.001, true, 'the median is below a millisecond');
  perform test.equal(v_row.run_p95_seconds between 0.5 and 1, true, 'the 95th is among the slow ones');
  perform test.equal(v_row.wait_p50_seconds is null, true, 'nothing waited');
  perform test.equal((select c.completed from bugle.command_stats c), 100::bigint, 'the hour');
end
$$;

rollback;
