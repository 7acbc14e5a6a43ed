begin;

do $$
declare
  v_id bigint;
begin
  set local role bugle_enqueuer;
  select w.id into v_id
    from bugle.enqueue_workflow('{"jobs": {"x": {"command": "noop"}, "y": {"command": "noop", "after": ["x"]}}}') w
    where w.name = 'x';
  perform bugle.enqueue_after(array[v_id], 'noop');
  perform test.refused('select * from bugle.dependencies', '42501');
  perform test.refused(format('select * from bugle.results_of(%s)', v_id), '42501');
  perform test.refused('select bugle.subscribe()', '42501');
  -- the checks cannot be switched off
  perform set_config('bugle.skip_checks', 'on', true);
  perform test.refused($sql$select bugle.enqueue_workflow('{"jobs": {"x": {"command": "", "after": []}}}')$sql$,
    'JB001');

  set local role bugle_viewer;
  perform count(*) from bugle.dependencies;
  perform count(*) from bugle.results_of(v_id + 1);
  perform count(*) from bugle.workflow(v_id);
  perform test.refused('delete from bugle.dependencies', '42501');
  perform test.refused($sql$select bugle.enqueue_workflow('{}')$sql$, '42501');

  set local role bugle_worker;
  perform count(*) from bugle.results_of(v_id + 1);
  perform test.refused('select * from bugle.dependencies', '42501');
  reset role;
end
$$;

rollback;
