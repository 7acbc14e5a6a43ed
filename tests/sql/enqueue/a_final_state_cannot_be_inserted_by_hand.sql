begin;

do $$
declare
  v_state text;
begin
  foreach v_state in array array['completed', 'failed', 'cancelled'] loop
    perform test.refused(format('insert into bugle.jobs (command, state) values (''noop'', %L)', v_state),
      'JB002', format('column "state" cannot be set: ''%s''', v_state));
    perform test.refused(format(
      'insert into bugle.jobs (command, state, reason, finished_at) values (''noop'', %L, ''x'', now())', v_state),
      'JB002', format('column "state" cannot be set: ''%s''', v_state));
  end loop;
  perform test.refused($sql$insert into bugle.jobs (command, state) values ('noop', 'nonsense')$sql$, '23514');
end
$$;

rollback;
