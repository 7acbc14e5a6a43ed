begin;

create function pg_temp.states(p_command text) returns text
language sql
as $$
  select string_agg(j.state, ' ' order by j.id) from bugle.jobs j where j.command = p_command
$$;

do $$
declare
  v_worker constant bigint := test.register('{flow,parent,child}');
  v_nonce constant uuid := test.nonce(v_worker);
  v_first bigint;
  v_held bugle.held_job;
begin
  select w.id into v_first
  from bugle.enqueue_workflow('{"jobs": {"a": {"command": "flow"}, "b": {"command": "flow", "after": ["a"]},
    "c": {"command": "flow", "after": ["b"]}}}') w
  where w.name = 'a';

  perform test.equal(bugle.pause(v_first, p_family => true), 'paused', 'its state');
  perform test.equal(pg_temp.states('flow'), 'paused paused paused', 'all are paused');
  perform bugle.resume(v_first + 1, p_family => true);
  perform test.equal(pg_temp.states('flow'), 'ready waiting waiting', 'any of them stands for all');
  perform bugle.cancel(v_first + 2, p_family => true);
  perform test.equal(pg_temp.states('flow'), 'cancelled cancelled cancelled', 'all are cancelled');
  perform bugle.restart(v_first, p_family => true);
  perform test.equal(pg_temp.states('flow'), 'ready waiting waiting', 'and wait for each other again');
  perform test.complete(v_worker, test.running(v_worker, v_first));
  perform bugle.cancel(v_first, p_family => true);
  perform test.equal(pg_temp.states('flow'), 'completed cancelled cancelled', 'what is completed stays');
  perform test.refused(format('select bugle.cancel(%s, p_family => true)', v_first), 'JB031');
  perform test.refused('select bugle.cancel(-1, p_family => true)', 'JB030');

  -- children, and theirs
  v_held := test.running(v_worker, bugle.enqueue('parent'));
  perform bugle.spawn(v_worker, v_nonce, v_held, '[{"command": "child"}, {"command": "child"}]');
  perform bugle.spawn(v_worker, v_nonce, (c.id, c.claim)::bugle.held_job, '[{"command": "child"}]')
  from test.claim(v_worker, 1) c;
  perform test.equal(cardinality(bugle.family(v_held.id)), 4, 'the family');
  perform bugle.cancel(v_held.id, p_family => true);
  perform test.equal(pg_temp.states('parent') || ' ' || pg_temp.states('child'),
    'cancelled cancelled cancelled cancelled', 'all of them');
end
$$;

rollback;
