begin;

-- with each kind of key, and without any: each has an index of its own
do $$
declare
  v_worker constant bigint := test.register('{noop}', '{plain,limited,fair,ordered}');
  v_queue text;
  v_key jsonb;
  v_failed bigint;
  v_fresh bigint;
  v_other bigint;
begin
  for v_queue, v_key in
    select k.queue, k.key
    from (values ('plain', '{}'::jsonb), ('limited', '{"limit_key": "k"}'), ('fair', '{"fair_key": "k"}'),
      ('ordered', '{"order_key": "k"}')) k (queue, key)
  loop
    v_failed := bugle.enqueue('noop', p_queue => v_queue, p_retry_policy => 'default',
      p_limit_key => v_key ->> 'limit_key', p_fair_key => v_key ->> 'fair_key', p_order_key => v_key ->> 'order_key');
    perform test.fail(v_worker, (select (c.id, c.claim)::bugle.held_job from test.claim(v_worker, 1, v_queue) c));
    v_fresh := bugle.enqueue('noop', p_queue => v_queue, p_run_at => now() - interval '20 seconds',
      p_limit_key => v_key ->> 'limit_key', p_fair_key => v_key ->> 'fair_key', p_order_key => v_key ->> 'order_key');
    v_other := bugle.enqueue('noop', p_queue => v_queue, p_run_at => now() - interval '30 seconds',
      p_limit_key => v_key ->> 'limit_key', p_fair_key => v_key ->> 'fair_key', p_order_key => v_key ->> 'order_key');
    update bugle.jobs_live j set run_at = now() - interval '10 seconds' where j.id = v_failed;
    perform bugle.promote();
    perform test.equal(array(select c.id from test.claim(v_worker, 3, v_queue) c),
      -- of one order key, one runs at a time, and the order is that of the ids
      case v_queue when 'ordered' then array[v_failed] else array[v_other, v_fresh, v_failed] end,
      v_queue);
  end loop;
end
$$;

rollback;
