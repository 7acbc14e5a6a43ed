begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_old constant jsonb := test.workflow('{"a": {}, "b": {"after": ["a"]}}');
  v_new constant jsonb := test.workflow('{"a": {}, "b": {"after": ["a"]}}');
begin
  update bugle.dependencies d set created_at = now() - interval '1 year';
  update bugle.workflow_jobs w set created_at = now() - interval '1 year';
  perform bugle.cancel((v_old ->> 'a')::bigint);
  perform bugle.prune();
  perform test.equal((select array_agg(d.job) from bugle.dependencies d), array[(v_new ->> 'b')::bigint],
    'unless a job of it lives');
  perform test.equal((select count(*) from bugle.workflow_jobs w), 2::bigint, 'its names too');
end
$$;

rollback;
