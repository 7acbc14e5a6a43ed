begin;

do $$
declare
  v_bad record;
begin
  perform bugle.enqueue('noop');
  for v_bad in
    values
      ('{}', 'JB040', 'a workflow must be an object with "jobs"%'),
      ('[]', 'JB040', 'a workflow must be an object with "jobs"%'),
      ('{"jobs": {}}', 'JB040', 'a workflow must be an object with "jobs"%'),
      ('{"jobs": {"x": {"command": "noop"}}, "name": "w"}', 'JB040', 'a workflow must be an object with "jobs"%'),
      ('{"jobs": {"x": 1}}', 'JB040', 'job ''x'' of the workflow: a job must be an object, not ''1'''),
      ('{"jobs": {"x": {}}}', 'JB040', 'job ''x'' of the workflow: the command is missing'),
      ('{"jobs": {"x": {"command": "noop", "comand": 1}}}', 'JB040',
        'job ''x'' of the workflow: a job has no field ''comand'''),
      ('{"jobs": {"x": {"command": "noop", "state": "ready"}}}', 'JB040', '%no field ''state'''),
      ('{"jobs": {"x": {"command": "noop", "after": "y"}}}', 'JB040',
        'job ''x'' of the workflow: "after" must be an array, not ''y'''),
      ('{"jobs": {"x": {"command": "noop", "after": [true]}}}', 'JB040',
        'job ''x'' of the workflow: invalid entry in "after": ''true'''),
      ('{"jobs": {"x": {"command": "noop", "after": [1.5]}}}', 'JB040', '%invalid entry in "after"%'),
      ('{"jobs": {"x": {"command": "noop", "after": [{"name": "y"}]}}}', 'JB040', '%invalid entry in "after"%'),
      ('{"jobs": {"y": {"command": "noop"}, "x": {"command": "noop", "after": [{"job": "y", "on_failure": '
        '"ignore"}]}}}', 'JB040', 'job ''x''%invalid entry in "after"%'),
      ('{"jobs": {"x": {"command": "noop", "after": ["y"]}}}', 'JB040',
        'job ''x'' of the workflow: it comes after ''y'', which is not in the workflow'),
      ('{"jobs": {"y": {"command": "noop"}, "x": {"command": "noop", "after": ["y", {"job": "y"}]}}}', 'JB040',
        'job ''x''%after ''y'' more than once'),
      ('{"jobs": {"x": {"command": "noop", "after": ["x"]}}}', 'JB040',
        'job ''x'' of the workflow: it depends on itself: x after x'),
      ('{"jobs": {"a": {"command": "noop", "after": ["c"]}, "b": {"command": "noop", "after": ["a"]}, "c": {"command": '
        '"noop", "after": ["b"]}, "d": {"command": "noop", "after": ["c"]}}}',
        'JB040', 'job ''a'' of the workflow: it depends on itself: a after c after b after a'),
      ('{"jobs": {"x": {"command": "noop", "after": [987654321]}}}', 'JB030', 'there is no job 987654321'),
      ('{"jobs": {"y": {"command": "noop"}, "x": {"command": "noop", "max_attempts": 0}}}', 'JB001',
        'job ''x'' of the workflow: column "max_attempts"%'),
      ('{"jobs": {"x": {"command": ""}}}', 'JB001', 'job ''x''%column "command"%'),
      ('{"jobs": {"x": {"command": "noop", "on_failure": " "}}}', 'JB001', 'job ''x''%column "on_failure"%'),
      ('{"jobs": {"x": {"command": "noop", "priority": "high"}}}', '22P02', 'job ''x'' of the workflow: %high%'),
      ('{"jobs": {"x": {"command": "noop", "retry_policy": "no such"}}}', 'JB004', 'job ''x''%')
  loop
    perform test.refused(format('select bugle.enqueue_workflow(%L)', v_bad.column1), v_bad.column2, v_bad.column3);
  end loop;
  perform test.equal((select count(*) from bugle.dependencies), 0::bigint, 'nothing is stored');
end
$$;

rollback;
