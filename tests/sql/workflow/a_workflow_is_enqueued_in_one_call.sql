begin;

do $$
declare
  v_workflow constant jsonb := test.workflow('{
    "fetch": {}, "count": {"after": ["fetch"], "payload": [1], "priority": 7, "queue": "q"}, "index": {"after": '
      '["fetch"]},
    "report": {"after": ["count", {"job": "index", "on_failure": "run"}], "on_success": "noop"}}');
  v_job bugle.jobs;
begin
  perform test.equal(test.states(v_workflow), 'count waiting, fetch ready, index waiting, report waiting',
    'only the first can start');
  perform test.equal(
    (v_workflow ->> 'fetch')::bigint < (v_workflow ->> 'count')::bigint
      and (v_workflow ->> 'index')::bigint < (v_workflow ->> 'report')::bigint,
    true, 'a job has a higher id than those it needs');
  v_job := test.job((v_workflow ->> 'count')::bigint);
  perform test.equal(concat_ws(' ', v_job.payload, v_job.priority, v_job.queue, v_job.outstanding), '[1] 7 q 1',
    'with every column');
  perform test.equal((test.job((v_workflow ->> 'report')::bigint)).outstanding, 2, 'one for each it needs');
  perform test.equal((
      select string_agg(concat_ws(' ', w.name, w.command, w.state, w.after), ', ' order by w.name)
      from bugle.workflow((v_workflow ->> 'index')::bigint) w),
    'count noop waiting {fetch}, fetch noop ready {}, index noop waiting {fetch}, report noop waiting {count,index}',
      'the workflow of any of them');
end
$$;

rollback;
