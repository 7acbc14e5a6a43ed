begin;

-- the first reason of a job, and a part of its sentence
create function pg_temp.told(p_id bigint) returns text language sql as $$ select concat(e.reason, ': ', e.message)
  from bugle.explain(p_id) e limit 1 $$;
create function pg_temp.expect(p_id bigint, p_like text) returns void language plpgsql as $$
begin
  if pg_temp.told(p_id) not like p_like or exists (select from bugle.explain(p_id) e where e.fix is null
    or e.facts is null) then
    raise exception 'expected %, got %', p_like, pg_temp.told(p_id);
  end if;
end
$$;

do $$
declare
  v_nobody constant bigint := bugle.enqueue('noop', p_queue => 'lonely');
  v_worker bigint;
  v_unknown bigint;
  v_id bigint;
  v_held bugle.held_job;
begin
  perform pg_temp.expect(v_nobody, 'unserved: No live worker serves its queue ''lonely''.');
  v_worker := test.register(p_slots => 1);
  v_unknown := bugle.enqueue('unheard_of');
  perform pg_temp.expect(v_unknown,
    'unserved: One live worker serves its queue ''default'', but it does not have an executor for its command '
    '''unheard_of''.');

  perform pg_temp.expect(test.job_in('scheduled', v_worker), 'scheduled: It is scheduled to run in 60 min.');
  perform pg_temp.expect(test.job_in('retrying', v_worker),
    'retrying: Attempt 1 of 16 failed (boom); the next one is due in % s.');
  perform pg_temp.expect(test.job_in('paused', v_worker), 'paused: It is paused by %, for %.');
  perform pg_temp.expect(test.job_in('waiting', v_worker), 'waiting: It waits for an external answer.');
  perform pg_temp.expect(test.job_in('completed', v_worker), 'completed: It was completed % ago, in attempt 1.');
  perform pg_temp.expect(test.job_in('cancelled', v_worker), format(
    'cancelled: It was cancelled %% ago by an operator (%s).', session_user));
  v_held := test.running(v_worker);
  perform test.cancel_held(v_worker, v_held, 'no such order');
  perform pg_temp.expect(v_held.id, 'cancelled: It was cancelled % ago by its executor: no such order.');
  v_held := test.running(v_worker);
  perform test.wait(v_worker, v_held);
  perform bugle.resolve(v_held.id);
  perform pg_temp.expect(v_held.id, 'completed: It was completed % ago, in attempt 1: it was answered.');
  v_id := bugle.enqueue('noop');
  perform bugle.set_state(v_id, 'completed');
  perform pg_temp.expect(v_id, 'completed: It was completed % ago.');
  perform pg_temp.expect(test.job_in('failed', v_worker),
    'not_retryable: It failed % ago after 1 attempt: its executor reported that a retry would not help; the '
    'last error: boom.');

  v_id := bugle.enqueue('noop');
  perform pg_temp.expect(v_id, 'next: It is about to start: 0 jobs are ahead of it, 1 of 1 slots are free.');
  perform bugle.pause_queue('default');
  perform pg_temp.expect(v_id, 'queue_paused: Its queue ''default'' has been paused for %.');
  perform bugle.resume_queue('default');
  perform bugle.pause_worker(v_worker);
  perform pg_temp.expect(v_id,
    format('worker_paused: The only live worker that can run it, %s (tester on host-1), has been paused for %%.',
    v_worker));
  perform pg_temp.expect(v_unknown,
    'unserved: One live worker serves its queue ''default'', but it does not have an executor for its command '
    '''unheard_of''.');
  perform bugle.pause_worker(test.register(p_slots => 1));
  perform pg_temp.expect(v_id, 'worker_paused: All 2 live workers that can run it are paused: %.');
  delete from bugle.registrations r where r.id > v_worker;
  perform bugle.resume_worker(v_worker);
  v_held := test.running(v_worker, v_id);
  perform pg_temp.expect(v_id, 'running: It has been running for % on worker % (tester on host-1), attempt 1 of 16.');
  v_id := bugle.enqueue('noop');
  perform pg_temp.expect(v_id, 'busy: All 1 slots of queue ''default'' are busy, and 0 jobs are ahead of it.');
  update bugle.jobs_live set deadline = now() where id = v_id;
  perform pg_temp.expect(v_id, 'deadline: Its deadline passed % ago: it will not be started.');
  perform test.refused('select bugle.explain(999999999)', 'JB030');
end
$$;

rollback;
