begin;

-- The functions are for readers only: the planner has to see the expression behind a call, and enter by its index.
do $$
declare
  v_case record;
  v_plan json;
begin
  set local enable_seqscan = off;
  set local enable_bitmapscan = off;
  for v_case in
    values
      ('bugle.is_held_by(j, 1, 2, 3)', 'jobs_live_pkey', '%(id = %'),
      ('bugle.is_running(j) and j.worker = 1', 'jobs_live_running', '%(worker = %'),
      ('bugle.is_expired(j)', 'jobs_live_deadline', '%(deadline <= now())%')
  loop
    execute 'explain (format json) select j.id from bugle.jobs_live j where ' || v_case.column1 || ' for update'
      into v_plan;

    perform test.equal(v_plan #>> '{0,Plan,Plans,0,Index Name}', v_case.column2, 'the index for ' || v_case.column1);
    assert v_plan #>> '{0,Plan,Plans,0,Index Cond}' like v_case.column3, v_plan::text;
    assert v_plan::text not like '%bugle.is_%', v_plan::text;
  end loop;
end
$$;

rollback;
