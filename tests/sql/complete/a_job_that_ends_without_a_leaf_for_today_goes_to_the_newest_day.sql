begin;

update bugle.history_days d set retired_at = now() where d.day >= (now() at time zone 'utc')::date;
select bugle.add_day(k, (now() at time zone 'utc')::date - n) from unnest(array['ended', 'failed']) k,
  generate_series(1, 2) n;

do $$
declare
  v_worker constant bigint := test.register();
  v_completed constant bugle.held_job := test.running(v_worker);
  v_failed constant bugle.held_job := test.running(v_worker);
begin
  perform test.complete(v_worker, v_completed);
  perform test.fail(v_worker, v_failed, p_retryable => false);

  perform test.equal((test.job(v_completed.id)).day, (now() at time zone 'utc')::date - 1,
    'the day of the completed one');
  perform test.equal((test.job(v_failed.id)).day, (now() at time zone 'utc')::date - 1, 'the day of the failed one');
  perform test.equal((test.job(v_failed.id)).finished_at, now(), 'it still says when it ended');
end
$$;

rollback;
