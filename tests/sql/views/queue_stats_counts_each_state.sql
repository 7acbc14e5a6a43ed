begin;

do $$
declare
  v_worker constant bigint := test.register('{noop}', '{default,idle}', 5);
  v_held constant bugle.held_job[] := array(select test.running(v_worker) from generate_series(1, 5));
  v_row jsonb;
begin
  perform test.complete(v_worker, v_held[1]);
  perform test.fail(v_worker, v_held[2], p_retryable => false);
  perform test.fail(v_worker, v_held[3], p_retry_after => 60);
  perform test.wait(v_worker, v_held[4]);
  perform bugle.enqueue('noop', p_run_at => now() - interval '1 hour');
  perform bugle.enqueue('unknown');
  perform bugle.enqueue('noop', p_run_at => now() + interval '1 day');

  select to_jsonb(q) into v_row from bugle.queue_stats q where q.queue = 'default';
  perform test.equal(v_row, jsonb_build_object('queue', 'default', 'ready', 2, 'running', 1, 'scheduled', 1,
    'retrying', 1, 'waiting', 1,
    'paused', 0, 'oldest_ready_age', '00:00:00', 'due_next', now() + interval '1 minute', 'completed_last_minute', 1,
      'failed_last_minute', 1,
    'workers', 1, 'slots', 5, 'unserved_commands', array['unknown'], 'is_estimate', false, 'paused_since', null,
      'limits', null), 'the queue');
  perform test.equal((select concat_ws(' ', q.ready, q.running, q.workers, q.slots) from bugle.queue_stats q
    where q.queue = 'idle'), '0 0 1 5', 'an idle one');
  perform test.equal((select count(*) from bugle.queue_stats), 2::bigint, 'queues');
end
$$;

rollback;
