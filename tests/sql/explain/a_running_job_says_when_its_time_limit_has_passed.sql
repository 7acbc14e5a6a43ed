begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_id constant bigint := bugle.enqueue('noop', p_timeout => interval '5 minutes');
  v_held constant bugle.held_job := test.running(v_worker, v_id);
  v_other constant bugle.held_job := test.running(v_worker);
begin
  perform test.equal(test.reasons(v_id), '{running}', 'in time');

  update bugle.jobs_live j set started_at = now() - interval '8 minutes' where j.id = v_id;
  perform test.equal(test.reasons(v_id), '{overdue,running}', 'late');
  perform test.explained(v_id, 'overdue', 'Its time limit of 5 min passed 3 min ago.', '%restart its worker%');

  perform bugle.note_condition(v_worker, test.nonce(v_worker), null, false, array[v_id, v_other.id]);
  perform test.explained(v_id, 'overdue',
    'Its time limit of 5 min passed 3 min ago, and its executor does not stop.');
  perform test.explained(v_other.id, 'overdue', 'Its time limit has passed, and its executor does not stop.');
  perform test.equal((select w.overdue from bugle.workers w), array[v_id, v_other.id], 'the view of workers has them');
  perform test.refused(format('select bugle.note_condition(%s, gen_random_uuid(), null, false, null)', v_worker),
    'JB010');
end
$$;

rollback;
