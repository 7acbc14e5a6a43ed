begin;

do $$
declare
  v_function record;
  v_hint text;
begin
  for v_function in
    select p.proname, p.proargnames,
      case p.proname when 'reschedule_where' then 'now()' when 'set_priority_where' then '1' when 'set_state_where'
        then '''ready''' end as needs
    from pg_proc p
    where p.pronamespace = 'bugle'::regnamespace
      and p.proname like '%\_where' escape '\'
  loop
    begin
      execute format('select bugle.%I(%s)', v_function.proname, v_function.needs);
      raise exception '% touched every job', v_function.proname;
    exception when sqlstate 'JB001' then
      get stacked diagnostics v_hint = pg_exception_hint;
    end;
    perform test.equal(string_agg(m[1], ', '), null, v_function.proname || ' has no such argument')
    from regexp_matches(v_hint, 'p_[a-z_]+', 'g') m
    where m[1] <> all (v_function.proargnames);
    perform test.equal(v_hint like '%p_state%', true, 'arguments are named');
  end loop;
end
$$;

rollback;
