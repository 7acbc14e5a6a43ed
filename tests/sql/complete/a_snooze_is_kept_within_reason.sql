begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job := test.running(v_worker);
begin
  perform test.snooze(v_worker, v_held, '170000000 years');
  perform test.equal((test.job(v_held.id)).run_at, now() + interval '10 years', 'for ever');

  v_held := test.running(v_worker);
  perform test.snooze(v_worker, v_held, '-1 day');
  perform test.equal((test.job(v_held.id)).run_at, now(), 'into the past');
end
$$;

rollback;
