begin;

update bugle.settings set lost_grace = '0';

do $$
declare
  v_keeper constant bigint := test.register();
  v_lost constant bigint := test.register();
  v_crashed constant bugle.held_job := test.running(v_lost);
  v_due constant bigint := bugle.enqueue('noop', p_run_at => now() + interval '1 hour');
  v_late constant bigint := bugle.enqueue('noop', p_deadline => now() + interval '1 hour');
  v_pulse record;
begin
  perform test.dies(v_lost);
  update bugle.jobs_live j set run_at = now() where j.id = v_due;
  update bugle.jobs_live j set deadline = now() where j.id = v_late;

  select * into v_pulse from bugle.heartbeat(v_keeper, test.nonce(v_keeper),
    array[v_crashed, (v_due, 1)::bugle.held_job], true);

  perform test.equal(v_pulse.role, 'keeper', 'role');
  perform test.equal(v_pulse.troubles, '{}'::text[], 'troubles');
  perform test.equal((test.job(v_crashed.id)).state, 'ready', 'rescued');
  perform test.equal((test.job(v_due)).state, 'ready', 'promoted');
  perform test.equal((test.job(v_late)).state, 'failed', 'expired');
  perform test.equal(v_pulse.has_work, '{default}'::text[], 'queues with work');
  perform test.equal(cardinality(v_pulse.fenced), 2, 'jobs it believes to run and does not hold');
  assert (select w.is_keeper and w.running = 2 from bugle.workers w where w.id = v_keeper), 'the view says who keeps';
  perform test.equal((select h.role from bugle.heartbeat(v_keeper, test.nonce(v_keeper), '{}', false) h), 'keeper',
    'the role, the next time');
end
$$;

rollback;
