begin;

do $$
declare
  v_worker constant bigint := test.register(p_queues => '{default,other}');
begin
  perform bugle.enqueue('noop');
  perform bugle.enqueue('noop', p_queue => 'other');
  perform bugle.pause_queue('default', 'maintenance');

  perform test.equal((select count(*) from test.claim(v_worker, 10)), 0::bigint, 'paused');
  perform test.equal(array(select l from bugle.queues_with_work(v_worker, '{default,other}') l), array['other'],
    'looks');
  perform test.equal((select count(*) from test.claim(v_worker, 10, 'other')), 1::bigint, 'the other queue');
  perform bugle.resume_queue('default');
  perform test.equal((select count(*) from test.claim(v_worker, 10)), 1::bigint, 'resumed');
  perform test.refused($q$select bugle.resume_queue('default')$q$, 'JB031');
  perform test.equal((select string_agg(c.verb, ' ' order by c.id) from bugle.changes c where c.queue = 'default'),
    'pause_queue resume_queue', 'changes');
end
$$;

rollback;
