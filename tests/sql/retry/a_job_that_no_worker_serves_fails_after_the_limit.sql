begin;

do $$
declare
  v_worker constant bigint := test.register('{noop,paused}', '{default}', 5);
  v_served constant bigint := bugle.enqueue('noop');
  v_unserved constant bigint := bugle.enqueue('nobody');
  v_chain constant bigint := bugle.enqueue('chain', p_steps => '{noop,nobody}');
  v_paused constant bigint := bugle.enqueue('nobody', p_queue => 'held');
  v_young bigint;
begin
  perform bugle.pause_queue('held');
  update bugle.jobs_live j set updated_at = now() - interval '1 hour';
  v_young := bugle.enqueue('nobody');
  perform test.equal(bugle.expire(), 0, 'without a limit it waits');
  update bugle.settings set unserved_limit = '10 minutes';
  perform test.equal(bugle.expire(), 0, 'it counts from when the keeper first found them unserved');
  perform test.equal((select e.message from bugle.explain(v_unserved) e),
    'One live worker serves its queue ''default'', but it does not have an executor for its command ''nobody''. If '
    'none comes, it fails in 10 min.', 'the limit is explained');
  update bugle.unserved_routes u set since = now() - interval '7 minutes';
  perform test.equal((select e.facts ->> 'fails_at' from bugle.explain(v_unserved) e)::timestamptz,
    now() + interval '3 minutes', 'and when it fails');
  perform test.equal((select e.facts ->> 'fails_at' from bugle.explain(v_young) e)::timestamptz,
    now() + interval '10 minutes', 'a job that has been ready for less time fails later');
  perform test.equal((select count(*) from bugle.explain(v_paused) e where e.facts ? 'fails_at'), 0::bigint,
    'not in a paused queue');
  update bugle.unserved_routes u set since = now() - interval '10 minutes';

  perform test.equal(bugle.expire(), 2, 'two have waited too long');
  perform test.equal((select array_agg(j.id order by j.id) from bugle.jobs j where j.state = 'failed'),
    array[v_unserved, v_chain], 'those');
  perform test.equal((test.job(v_unserved)).reason, 'no_executor', 'why');
  perform test.equal((test.job(v_unserved)).last_error,
    'no worker served the command ''nobody'' in queue ''default'' for 00:10:00', 'the error');
  perform test.equal(array[(test.job(v_served)).state, (test.job(v_paused)).state, (test.job(v_young)).state],
    '{ready,ready,ready}'::text[], 'the others wait: served, in a paused queue, young');
  update bugle.settings set unserved_limit = null;
  perform bugle.expire();
  perform test.equal((select count(*) from bugle.unserved_routes), 0::bigint, 'without a limit nothing is kept');
end
$$;

rollback;
