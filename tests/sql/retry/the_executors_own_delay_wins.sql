begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_case record;
  v_held bugle.held_job;
begin
  for v_case in
    select *
    from (values (0.5, interval '0.5 seconds'), (90, '90 seconds'), (0, '0'), (-5, '0'), (1e30, '3650 days'),
      ('NaN', '3650 days'),
      ('Infinity', '3650 days'), ('-Infinity', '0')) c (seconds, expected)
  loop
    v_held := test.running(v_worker);
    perform test.fail(v_worker, v_held, p_retry_after => v_case.seconds);
    perform test.equal(extract(epoch from (test.job(v_held.id)).run_at - now()), extract(epoch from v_case.expected),
      'retry after ' || v_case.seconds);
  end loop;

  v_held := test.running(v_worker, bugle.enqueue('noop', p_max_attempts => 1));
  perform test.fail(v_worker, v_held, p_retry_after => 1);
  perform test.equal((test.job(v_held.id)).state, 'failed', 'but not over the number of attempts');
end
$$;

rollback;
