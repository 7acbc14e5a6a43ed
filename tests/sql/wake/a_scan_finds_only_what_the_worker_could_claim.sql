begin;

do $$
declare
  v_worker constant bigint := test.register('{noop}', '{look a,look b}');
begin
  perform bugle.enqueue('unserved', p_queue => 'look a');
  perform bugle.enqueue('noop', p_queue => 'look b', p_run_at => now() + interval '1 day');
  perform test.equal(array(select bugle.queues_with_work(v_worker, '{look a,look b}')), '{}'::text[], 'nothing to do');

  perform bugle.enqueue('noop', p_queue => 'look b');
  perform test.equal(array(select bugle.queues_with_work(v_worker, '{look a,look b}')), '{look b}'::text[],
    'one queue has work');
  perform test.equal(array(select bugle.queues_with_work(v_worker, '{look a}')), '{}'::text[],
    'only the queues asked for');
  perform test.equal(array(select bugle.queues_with_work(-1, '{look b}')), '{}'::text[],
    'an unknown worker has nothing to do');
end
$$;

rollback;
