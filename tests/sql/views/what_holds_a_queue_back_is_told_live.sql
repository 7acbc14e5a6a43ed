begin;

do $$
declare
  v_worker constant bigint := test.register(p_queues => '{narrow,fair,ordered}', p_slots => 1);
  v_first bigint;
  v_held bugle.held_job;
begin
  perform bugle.set_limits('narrow', p_max_running => 3, p_max_starts => 5, p_starts_period => '1 minute',
    p_max_running_per_key => 1);
  perform bugle.set_command_limit('noop', 7);
  insert into bugle.jobs (command, queue, limit_key)
  select 'noop', 'narrow', k.key from unnest('{a,a,b}'::text[]) k (key);
  perform test.claim(v_worker, 1, 'narrow');

  perform test.equal(
    array(select concat_ws(' ', l.limited_by, l.key, l.used, 'of', l.most, 'left', l.room)
      from bugle.limits_left('narrow') l),
    '{max_running 1 of 3 left 2,max_starts 1 of 5 left 4,max_running_per_key a 1 of 1 left 0,
      max_running_per_key b 0 of 1 left 1,command noop 1 of 7 left 6}'::text[], 'what is left of each limit');
  perform test.equal((select count(*) from bugle.limits_left('free')), 0::bigint, 'a queue without limits has none');

  insert into bugle.jobs (command, queue, fair_key)
  select 'noop', 'fair', k.key from unnest('{x,x,y}'::text[]) k (key);
  perform test.equal((select jsonb_object_agg(t.fair_key, t.ready) from bugle.next_turns('fair') t),
    '{"x": 2, "y": 1}'::jsonb,
    'each key, with how many are ready');
  perform test.claim(v_worker, 1, 'fair');
  perform test.equal(
    (select t.fair_key from bugle.next_turns('fair') t where t.turn = 1),
    (select case j.fair_key when 'x' then 'y' else 'x' end from bugle.jobs_live j
      where j.queue = 'fair' and j.state = 'running'),
    'the turn is that of the other key');

  v_first := bugle.enqueue('noop', p_queue => 'ordered', p_order_key => 'k');
  perform bugle.enqueue('noop', p_queue => 'ordered', p_order_key => 'k');
  perform bugle.enqueue('noop', p_queue => 'ordered', p_order_key => 'alone');
  perform test.equal((select count(*) from bugle.blocked_keys('ordered')), 0::bigint, 'the first may start');
  select c.id, c.claim into v_held from test.claim(v_worker, 1, 'ordered') c where c.id = v_first;
  perform test.fail(v_worker, v_held);
  perform test.equal(
    (select concat_ws(' ', k.order_key, k.job = v_first, k.state, k.waiting) from bugle.blocked_keys('ordered') k),
    'k t retrying 1', 'the retry holds the other job of its key');

  perform test.equal(array(select d.queue || ' ' || d.mode from bugle.doorbell() d where d.worker = v_worker),
    '{fair awake,narrow awake,ordered awake}'::text[], 'a worker that holds no bell scans by itself');
end
$$;

rollback;
