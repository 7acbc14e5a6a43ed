begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_state text;
begin
  set local bugle.skip_checks = 'on';
  foreach v_state in array array['scheduled', 'retrying', 'paused', 'waiting'] loop
    insert into bugle.jobs (command, state, paused_from)
      values ('noop', v_state, case v_state when 'paused' then 'ready' end);
  end loop;

  perform test.equal((select count(*) from test.claim(v_worker, 10)), 0::bigint, 'claimed');
end
$$;

rollback;
