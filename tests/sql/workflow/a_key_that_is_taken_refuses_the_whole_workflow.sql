begin;

do $$
begin
  perform bugle.enqueue('noop', p_unique_key => 'u');
  perform bugle.enqueue('noop', p_idempotency_key => 'i');
  perform test.refused($sql$select bugle.enqueue_workflow('{"jobs": {"x": {"command": "noop"}, "y": {"command": '
    '"noop", "unique_key": "u"}}}')$sql$, '23505');
  perform test.refused($sql$select bugle.enqueue_workflow('{"jobs": {"x": {"command": "noop"}, "y": {"command": '
    '"noop", "idempotency_key": "i"}}}')$sql$, '23505');
  perform test.workflow('{"x": {"idempotency_key": "new"}}');
  perform test.refused($sql$insert into bugle.jobs (command, idempotency_key) values ('noop', 'new')$sql$, '23505');
end
$$;

rollback;
