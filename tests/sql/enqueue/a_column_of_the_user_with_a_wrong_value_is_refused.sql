begin;

do $$
declare
  v_case record;
begin
  for v_case in
    select *
    from (values
      ('command', $v$''$v$, 'JB001', $m$column "command" must have 1 to 200 characters, not 0: ''$m$),
      ('command', $v$'  '$v$, 'JB001', 'column "command"%'),
      ('command', $v$repeat('x', 201)$v$, 'JB001', 'column "command"%, not 201: ''xxx%…''%'),
      ('command', 'null', 'JB001', 'column "command" must not be null'),
      ('queue', $v$''$v$, 'JB001', $m$column "queue" must have 1 to 100 characters, not 0: ''$m$),
      ('queue', $v$'  '$v$, 'JB001', 'column "queue"%'),
      ('queue', $v$repeat('x', 101)$v$, 'JB001', 'column "queue"%, not 101: %'),
      ('run_at', $v$'infinity'$v$, 'JB001', 'column "run_at" must be a finite time, not ''infinity'''),
      ('run_at', $v$'-infinity'$v$, 'JB001', 'column "run_at" must be a finite time, not ''-infinity'''),
      ('deadline', $v$'infinity'$v$, 'JB001', 'column "deadline" must be a finite time, not ''infinity'''),
      ('deadline', $v$'-infinity'$v$, 'JB001', 'column "deadline" must be a finite time, not ''-infinity'''),
      ('deadline', 'now()', 'JB001', 'column "deadline" (%) is not later than now %'),
      ('deadline', $v$'2001-02-03 04:05:06Z'$v$, 'JB001', 'column "deadline" (2001-02-03 %) is not later than now %'),
      ('timeout', $v$'0'$v$, 'JB001', 'column "timeout" must be positive %, not ''00:00:00'''),
      ('timeout', $v$'-1 second'$v$, 'JB001', 'column "timeout" must be positive %, not ''-00:00:01'''),
      ('timeout', $v$'11 years'$v$, 'JB001', 'column "timeout" % at most 10 years, not ''11 years'''),
      ('max_attempts', '0', 'JB001', 'column "max_attempts" must be at least 1, not 0'),
      ('max_attempts', '-3', 'JB001', 'column "max_attempts" must be at least 1, not -3'),
      ('retry_policy', $v$'nonsense'$v$, 'JB004', 'column "retry_policy" is not the name of a policy: ''nonsense'''),
      ('headers', $v$'[1]'$v$, 'JB001', 'column "headers" must be a JSON object, not array'),
      ('headers', $v$'null'$v$, 'JB001', 'column "headers" must be a JSON object or SQL NULL, not the JSON value null'),
      ('headers', $v$jsonb_build_object('h', repeat('x', 65537 - 9))$v$, 'JB003',
        'column "headers" has 65537 bytes, the limit is 65536'),
      ('payload', $v$to_jsonb(repeat('x', 1048576))$v$, 'JB003',
        'column "payload" has 1048578 bytes, the limit is 1048576'))
      c (column_name, value, sqlstate, message)
  loop
    perform test.refused(
      case v_case.column_name
        when 'command' then format('insert into bugle.jobs (command) values (%s)', v_case.value)
        else format('insert into bugle.jobs (command, %I) values (''noop'', %s)', v_case.column_name, v_case.value)
      end, v_case.sqlstate, v_case.message);
  end loop;
  perform test.refused($sql$insert into bugle.jobs (command, run_at, deadline)
    values ('noop', now() - interval '2 hours', now() - interval '1 hour')$sql$,
    'JB001', 'column "deadline"%');
  perform test.refused($sql$insert into bugle.jobs (command, run_at, deadline)
    values ('noop', now() + interval '2 hours', now() + interval '1 hour')$sql$,
    'JB001', 'column "deadline"%');
end
$$;

rollback;
