begin;

do $$
declare
  v_case record;
begin
  for v_case in
    select *
    from (values
      ('state', $v$'running'$v$, '''running'''), ('state', $v$'scheduled'$v$, '''scheduled'''),
      ('state', $v$'retrying'$v$, '''retrying'''), ('state', $v$'paused'$v$, '''paused'''),
        ('state', $v$'waiting'$v$, '''waiting'''),
      ('attempt', '1', '1'), ('crashes', '2', '2'), ('claim', '3', '3'), ('worker', '4', '4'),
        ('reason', $v$'why'$v$, 'why'),
      ('result', $v$'{"a": 1}'$v$, 'a'), ('last_error', $v$'boom'$v$, 'boom'), ('last_error_code', $v$'e1'$v$, 'e1'),
      ('progress', '0.5', '0.5'), ('progress_note', $v$'half'$v$, 'half'),
        ('answer_by', $v$'2030-01-02'$v$, '2030-01-02'),
      ('answer_token', $v$'secret'$v$, 'secret'), ('first_started_at', $v$'2020-01-02'$v$, '2020-01-02'),
      ('started_at', $v$'2020-01-02'$v$, '2020-01-02'),
      ('finished_at', $v$'2020-01-02'$v$, '2020-01-02'), ('progress', '0', '0'),
        ('day', $v$'2020-01-02'$v$, '2020-01-02'))
      c (column_name, value, shown)
  loop
    perform test.refused(
      format('insert into bugle.jobs (command, %I) values (''noop'', %s)', v_case.column_name, v_case.value),
      'JB002', format('column "%s"%%cannot be set%%', v_case.column_name));
    perform test.refused(
      format('insert into bugle.jobs (command, %I) values (''noop'', %s)', v_case.column_name, v_case.value),
      'JB002', format('%%%s%%', v_case.shown));
  end loop;
end
$$;

rollback;
