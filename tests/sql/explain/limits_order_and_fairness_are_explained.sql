begin;

-- the reasons of a job with their sentences, and all of them have a fix and facts
create function pg_temp.expect(p_id bigint, p_reason text, p_like text, p_fix text) returns void language plpgsql as $$
declare
  v_told record;
begin
  select e.* into v_told from bugle.explain(p_id) e where e.reason = p_reason;
  if v_told.message is null or v_told.message not like p_like or v_told.fix not like p_fix or v_told.facts is null then
    raise exception 'expected % "%" "%", got %', p_reason, p_like, p_fix,
      (select jsonb_agg(to_jsonb(e)) from bugle.explain(p_id) e);
  end if;
end
$$;

do $$
declare
  v_worker constant bigint := test.register('{noop,heavy,unserved}',
    '{one,told_keys,rate,key_rate,told_fair,heavy,order}');
  v_first bigint;
  v_second bigint;
  v_held bugle.held_job;
begin
  perform bugle.set_limits('one', p_max_running => 1);
  v_first := bugle.enqueue('noop', p_queue => 'one');
  v_second := bugle.enqueue('noop', p_queue => 'one');
  perform test.claim(v_worker, 5, 'one');
  perform pg_temp.expect(v_second, 'queue_limit',
    format('The limit of its queue ''one'' is reached: 1 of 1 are running (jobs %s).', v_first),
    'Wait until one finishes, or raise the limit: select bugle.set_limits(''one'', p_max_running => 2);');

  perform bugle.set_limits('told_keys', p_max_running_per_key => 1);
  v_first := bugle.enqueue('noop', p_queue => 'told_keys', p_limit_key => 'k');
  v_second := bugle.enqueue('noop', p_queue => 'told_keys', p_limit_key => 'k');
  perform test.claim(v_worker, 5, 'told_keys');
  perform pg_temp.expect(v_second, 'key_limit',
    format('The limit of its key ''k'' is reached: 1 of 1 are running (jobs %s).', v_first),
    '%p_max_running_per_key => 2);');

  perform bugle.set_limits('rate', p_max_starts => 1, p_starts_period => '10 minutes');
  v_first := bugle.enqueue('noop', p_queue => 'rate');
  v_second := bugle.enqueue('noop', p_queue => 'rate');
  perform test.claim(v_worker, 5, 'rate');
  perform pg_temp.expect(v_second, 'queue_rate',
    'Its queue ''rate'' has used 1 of 1 starts in the last 10 min; the next start is possible in 10 min.',
    'Wait, or raise the limit: %p_max_starts => 2);');

  perform bugle.set_limits('key_rate', p_max_starts_per_key => 1, p_starts_per_key_period => '10 minutes');
  v_first := bugle.enqueue('noop', p_queue => 'key_rate', p_limit_key => 'k');
  v_second := bugle.enqueue('noop', p_queue => 'key_rate', p_limit_key => 'k');
  perform test.claim(v_worker, 5, 'key_rate');
  perform pg_temp.expect(v_second, 'key_rate',
    'Its key ''k'' has used 1 of 1 starts in the last 10 min; the next start is possible in 10 min.',
    'Wait, or raise the limit: %p_max_starts_per_key => 2);');

  perform bugle.set_command_limit('heavy', 1);
  v_first := bugle.enqueue('heavy', p_queue => 'heavy');
  v_second := bugle.enqueue('heavy', p_queue => 'heavy');
  perform test.claim(v_worker, 5, 'heavy');
  perform pg_temp.expect(v_second, 'command_limit',
    format('The limit of its command ''heavy'' is reached: 1 of 1 are running (jobs %s).', v_first),
    '%bugle.set_command_limit(''heavy'', 2);');

  perform bugle.enqueue('noop', p_queue => 'told_fair', p_fair_key => 'a') from generate_series(1, 3);
  v_second := bugle.enqueue('noop', p_queue => 'told_fair', p_fair_key => 'a');
  perform pg_temp.expect(v_second, 'fair_turn',
    'The keys of its queue take turns, one start each: 3 jobs of its own key ''a'' are ahead of it.',
    format('Wait for its turn, or lower its priority number: select bugle.set_priority(%s, …);', v_second));

  v_first := bugle.enqueue('noop', p_queue => 'order', p_order_key => 'k');
  v_second := bugle.enqueue('noop', p_queue => 'order', p_order_key => 'k');
  perform pg_temp.expect(v_second, 'order_key',
    format('Its order key ''k'' is held by job %s, which comes first.', v_first),
    format('Wait for job %s to finish; why it has not: select * from bugle.explain(%s);', v_first, v_first));
  select c.id, c.claim into v_held from test.claim(v_worker, 5, 'order') c;
  perform pg_temp.expect(v_second, 'order_key',
    format('Its order key ''k'' is held by job %s, which is running.', v_first),
    format('Wait for job %s to finish, or stop it: select bugle.cancel(%s);', v_first, v_first));
  perform test.fail(v_worker, v_held);
  perform pg_temp.expect(v_second, 'order_key',
    format('Its order key ''k'' is held by job %s, which is retried in %% s.', v_first),
    '%bugle.reschedule(%pass%');
  perform bugle.pause(v_first);
  perform pg_temp.expect(v_second, 'order_key',
    format('Its order key ''k'' is held by job %s, which is paused.', v_first),
    format('select bugle.resume(%s);', v_first));
  perform bugle.resume(v_first);
  perform bugle.reschedule(v_first, now());
  select c.id, c.claim into v_held from test.claim(v_worker, 5, 'order') c;
  perform test.wait(v_worker, v_held);
  perform pg_temp.expect(v_second, 'order_key',
    format('Its order key ''k'' is held by job %s, which waits for an answer.', v_first), '%bugle.resolve(%');
  perform bugle.set_limits('order', p_order_on_retry => 'pass');
  perform test.equal((select count(*) from bugle.explain(v_second) e where e.reason = 'order_key'), 0::bigint,
    'where it may pass, it is not held');
end
$$;

rollback;
