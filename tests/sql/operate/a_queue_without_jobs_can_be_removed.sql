begin;

do $$
declare
  v_job constant bigint := bugle.enqueue('noop', p_queue => 'mial');
begin
  perform bugle.set_limits('mial', p_max_running => 3);
  perform bugle.pause_queue('mial');
  perform test.refused('select bugle.remove_queue(''mial'')', 'JB031', '%has live jobs%');
  perform bugle.cancel(v_job);

  perform bugle.remove_queue('mial', 'a typing error');

  perform test.equal((select count(*) from bugle.queues q where q.name = 'mial'), 0::bigint, 'its settings are gone');
  perform test.equal((select count(*) from bugle.queue_stats q where q.queue = 'mial'), 0::bigint, 'it is not shown');
  perform test.equal((select concat_ws('|', c.queue, c.from_state, c.note) from bugle.changes c
    where c.verb = 'remove_queue'), 'mial|paused, max_running 3|a typing error', 'it is recorded');
  perform test.refused('select bugle.remove_queue(''mial'')', 'JB030', '%there is no queue%');
end
$$;

rollback;
