begin;

do $$
declare
  v_job constant bigint := bugle.enqueue('noop');
begin
  perform test.equal(bugle.reschedule(v_job, now() + interval '1 hour'), 'scheduled', 'later');
  perform test.equal((test.job(v_job)).run_at, now() + interval '1 hour', 'run_at');
  perform test.equal(bugle.reschedule(v_job, now()), 'ready', 'now');
  perform test.equal(bugle.set_state(v_job, 'completed', 'done by hand'), 'completed', 'overruled');
  perform test.refused(format('select bugle.set_state(%s, ''ready'')', v_job), 'JB031');
  perform test.equal((select string_agg(c.verb || ' ' || c.from_state || ' ' || c.to_state, ', ' order by c.id)
    from bugle.changes c),
    'reschedule ready scheduled, reschedule scheduled ready, set_state ready completed', 'changes');
end
$$;

rollback;
