begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b,noop}');
  v_held constant bugle.held_job := test.running(v_worker, test.chain('{a,b}'));
  v_plain bugle.held_job;
begin
  perform test.start_step(v_worker, v_held);
  perform test.refused(format('select test.finish_step(%s, (%s, %s), 2)', v_worker, v_held.id, v_held.claim), 'JB031',
    'step 2 of job % cannot end: 0 of its steps are done');
  perform test.refused(format('select test.finish_step(%s, (%s, %s), 0)', v_worker, v_held.id, v_held.claim), 'JB031');
  v_plain := test.running(v_worker, bugle.enqueue('noop'));
  perform test.refused(format('select test.start_step(%s, (%s, %s))', v_worker, v_plain.id, v_plain.claim), 'JB031',
    'job % is not a chain');
  perform test.refused(format('select test.finish_step(%s, (%s, %s), 1)', v_worker, v_plain.id, v_plain.claim),
    'JB031');
end
$$;

rollback;
