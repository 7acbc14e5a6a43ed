begin;

do $$
declare
  v_state text;
  v_id bigint;
begin
  set local bugle.skip_checks = 'on';
  foreach v_state in array array['ready', 'scheduled', 'retrying', 'paused', 'waiting'] loop
    insert into bugle.jobs (command, state, paused_from, deadline)
      values ('noop', v_state, case v_state when 'paused' then 'ready' end, now()) returning id into v_id;
    insert into bugle.jobs (command, state, paused_from, deadline)
      values ('noop', v_state, case v_state when 'paused' then 'ready' end, now() + interval '1 second');

    perform test.equal(bugle.expire(), 1, v_state);

    perform test.equal(concat_ws(' ', (test.job(v_id)).state, (test.job(v_id)).reason,
      (test.job(v_id)).last_error_code), 'failed deadline deadline', v_state);
    assert (test.job(v_id)).last_error like 'not started before its deadline, %', 'it says which deadline';
  end loop;
end
$$;

rollback;
