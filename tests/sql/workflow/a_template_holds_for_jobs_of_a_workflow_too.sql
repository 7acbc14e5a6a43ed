begin;

insert into bugle.commands (name, queue, delay) values ('noop', 'templated', '1 hour');

do $$
declare
  v_worker constant bigint := test.register(p_queues => '{templated}');
  v_workflow constant jsonb := test.workflow('{"x": {"run_at": "2020-01-01"}, "y": {"after": ["x"]}, "z": {"after": '
    '["x"], "delay": "2 hours"}}');
begin
  perform test.equal((test.job((v_workflow ->> 'x')::bigint)).queue, 'templated', 'its queue');
  perform test.equal((test.job((v_workflow ->> 'y')::bigint)).run_at, now() + interval '1 hour', 'its delay');
  perform test.equal((test.job((v_workflow ->> 'z')::bigint)).run_at, now() + interval '2 hours', 'or the job''s own');
  perform test.complete(v_worker, c) from (select (t.id, t.claim)::bugle.held_job as c
    from test.claim(v_worker, 1, 'templated') t) t;
  perform test.equal(test.states(v_workflow), 'x completed, y scheduled, z scheduled',
    'what is due later is scheduled then');
end
$$;

rollback;
