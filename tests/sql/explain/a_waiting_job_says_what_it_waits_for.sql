begin;

create function pg_temp.told(p_id bigint) returns text language sql as $$ select concat(e.reason, ': ', e.message)
  from bugle.explain(p_id) e limit 1 $$;

do $$
declare
  v_worker constant bigint := test.register();
  v_workflow constant jsonb := test.workflow('{"a": {}, "b": {}, "y": {"after": ["a"]}, "z": {"after": ["a", "b"]}}');
  v_held bugle.held_job;
begin
  perform test.equal(pg_temp.told((v_workflow ->> 'y')::bigint),
    format('dependencies: It waits for job %s (''noop''), which is ready.', v_workflow ->> 'a'), 'one');
  perform test.equal(pg_temp.told((v_workflow ->> 'z')::bigint) like 'dependencies: It waits for 2 jobs; the first is '
    'job % (''noop''), which is ready.', true, 'several');
  v_held := test.running(v_worker, (v_workflow ->> 'a')::bigint);
  perform bugle.spawn(v_worker, test.nonce(v_worker), v_held, '[{"command": "noop"}, {"command": "noop"}]');
  perform test.equal(pg_temp.told((v_workflow ->> 'y')::bigint),
    format('dependencies: It waits for job %s (''noop''), which is waiting.', v_workflow ->> 'a'), 'its state');
  perform test.equal(pg_temp.told(v_held.id) like 'children: It waits for 2 children, of which 0 have ended; the first '
    'of the others is job % (''noop''), which is ready.', true, 'children');
  v_held := test.running(v_worker);
  perform test.wait(v_worker, v_held, null, '1 hour');
  perform test.equal(pg_temp.told(v_held.id),
    'waiting: It waits for an external answer, at most for another 60 min.', 'an answer');
  perform test.equal((select e.facts ->> 'outstanding' from bugle.explain((v_workflow ->> 'z')::bigint) e), '2',
    'as facts too');
end
$$;

rollback;
