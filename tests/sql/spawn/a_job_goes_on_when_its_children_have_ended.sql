begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job := test.running(v_worker, bugle.enqueue('noop', p_max_attempts => 1, p_priority => -1));
  v_child bugle.held_job;
  v_parent bugle.jobs;
begin
  perform bugle.spawn(v_worker, test.nonce(v_worker), v_held,
    '[{"command": "noop", "payload": 1}, {"command": "noop", "payload": 2, "max_attempts": 1}]');
  v_parent := test.job(v_held.id);
  perform test.equal(concat_ws(' ', v_parent.state, v_parent.outstanding), 'waiting 2', 'it waits for both');
  perform test.equal((select v.verdict from bugle.spawn(v_worker, test.nonce(v_worker), v_held,
    '[{"command": "noop"}]') v), 'repeated', 'said again');
  perform test.equal((select array_agg(j.payload order by j.id) from bugle.jobs_live j where j.parent = v_held.id),
    array['1', '2']::jsonb[], 'spawns nothing more');

  for v_child in
    select c.id, c.claim from test.claim(v_worker, 2) c order by c.id
  loop
    if (test.job(v_child.id)).payload = '1' then
      perform test.complete(v_worker, v_child, '{"sum": 1}');
      perform test.equal((test.job(v_held.id)).state, 'waiting', 'one is not all');
    else
      perform test.fail(v_worker, v_child, 'boom');
    end if;
  end loop;
  v_parent := test.job(v_held.id);
  perform test.equal(concat_ws(' ', v_parent.state, v_parent.attempt), 'ready 0',
    'also if one has failed; the attempt is not counted');
  v_held := test.running(v_worker, v_held.id);
  perform test.equal((test.job(v_held.id)).attempt, 1, 'the same attempt goes on');
  perform test.equal((select string_agg(concat_ws(' ', r.child, r.state, r.result, r.error), ', ' order by r.job)
    from bugle.results_of(v_held.id) r),
    't completed {"sum": 1}, t failed boom', 'with what came of them');
  perform test.complete(v_worker, v_held);
end
$$;

rollback;
