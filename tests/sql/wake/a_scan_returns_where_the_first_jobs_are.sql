begin;

do $$
declare
  v_worker constant bigint := test.register('{noop,other}', '{wide,narrow}');
  v_first bigint;
  v_urgent bigint;
begin
  perform test.equal((select row(s.found, s.first)::text from bugle.scan_ready(v_worker, 'wide', 10) s), '(0,)',
    'nothing is there');
  perform bugle.enqueue('unserved', p_queue => 'wide');
  v_first := bugle.enqueue('noop', p_queue => 'wide');
  perform bugle.enqueue('other', p_queue => 'wide');
  perform bugle.enqueue('noop', p_queue => 'wide', p_run_at => now() + interval '1 day');
  perform test.equal((select row(s.found, (s.first).priority, (s.first).id)::text
    from bugle.scan_ready(v_worker, 'wide', 10) s),
    format('(2,0,%s)', v_first),
    'what it could claim');
  perform test.equal((select s.found from bugle.scan_ready(v_worker, 'wide', 1) s), 1, 'no more than asked for');
  v_urgent := bugle.enqueue('other', p_queue => 'wide', p_priority => -5);
  perform test.equal((select row(s.found, (s.first).priority, (s.first).id)::text
    from bugle.scan_ready(v_worker, 'wide', 10) s),
    format('(3,-5,%s)', v_urgent),
    'the urgent one is the first');
  v_urgent := bugle.enqueue('chain', '{}', p_queue => 'wide', p_priority => -9, p_steps => '{other,noop}');
  perform test.equal((select row(s.found, (s.first).priority, (s.first).id)::text
    from bugle.scan_ready(v_worker, 'wide', 10) s),
    format('(4,-9,%s)', v_urgent),
    'a chain too');

  perform test.equal(array(
    select bugle.queues_with_work(v_worker, '{wide}', array[(-9, now(), v_urgent)::bugle.queue_position])),
    '{wide}'::text[],
    'there is something behind the first');
  perform test.equal(array(
    select bugle.queues_with_work(v_worker, '{wide}', array[(1, null, 0)::bugle.queue_position])), '{}'::text[],
    'and nothing behind all');

  perform bugle.pause_queue('wide');
  perform test.equal((select s.found from bugle.scan_ready(v_worker, 'wide', 10) s), 0, 'a paused queue has nothing');

  perform bugle.set_limits('narrow', p_max_running => 1);
  perform bugle.enqueue('noop', p_queue => 'narrow');
  perform test.equal((select count(*) from bugle.scan_ready(v_worker, 'narrow', 10)), 0::bigint,
    'a queue with limits knows no cursor');
end
$$;

rollback;
