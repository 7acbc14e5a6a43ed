begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b,c,d}');
  v_held bugle.held_job := test.running(v_worker, test.chain('{a,b,c,d}'));
  v_id constant bigint := v_held.id;
begin
  perform test.start_step(v_worker, v_held);
  perform test.refused(format($s$select bugle.set_step(%s, 1, 'done')$s$, v_id), 'JB031',
    '%the steps of a job that is running cannot be set');
  perform test.finish_step(v_worker, v_held, 1, '{"x": 1}');
  perform test.fail(v_worker, v_held);

  perform test.equal(bugle.set_step(v_id, 'b', 'done', '{"y": 2}', 'done by hand'), 'done', 'by its name');
  perform test.equal(concat_ws(' ', (test.job(v_id)).state, (test.job(v_id)).step, (test.job(v_id)).context),
    'failed 2 {"x": 1, "y": 2}', 'a failed job stays failed');
  perform bugle.set_step(v_id, 4, 'skipped');
  perform test.equal(test.steps(v_id), 'a done, b done, c pending, d skipped', 'each by itself');
  perform test.refused(format($s$select bugle.set_step(%s, 'c', 'done')$s$, v_id), 'JB031',
    'job % would have nothing left to do');
  perform bugle.set_step(v_id, 1, 'pending');
  perform test.equal((test.job(v_id)).step, 0, 'back to the first');
  perform test.equal((select string_agg(format('%s %s %s %s', c.verb, c.step, c.from_state, c.to_state)
    || coalesce(' ' || c.note, ''), ', ' order by c.id)
    from bugle.changes c where c.job = v_id),
      'set_step 2 failed done done by hand, set_step 4 pending skipped, set_step 1 done pending', 'recorded');

  perform bugle.restart(v_id, p_from_failed_step => true);
  v_held := test.running(v_worker, v_id);
  perform test.equal(test.start_step(v_worker, v_held), 1, 'the one that is pending again');
  perform test.equal((select n.position from bugle.finish_step(v_worker, test.nonce(v_worker), v_held, 1, 1, null) n),
    3, 'the one that is done is passed over');
  perform test.finish_step(v_worker, v_held, 3);
  perform test.equal((test.job(v_id)).state, 'completed', 'and so is the one that is skipped');
  perform test.refused(format($s$select bugle.set_step(%s, 1, 'pending')$s$, v_id), 'JB031');
end
$$;

rollback;
