begin;

do $$
declare
  v_worker constant bigint := test.register(p_queues => '{single}');
  v_lost bigint;
  v_held bugle.held_job;
  v_way text;
begin
  perform bugle.set_limits('single', p_max_running => 1);
  foreach v_way in array array['complete', 'fail', 'fail for good', 'give back', 'snooze', 'cancel held', 'wait',
    'cancel', 'rescue'] loop
    perform bugle.remove_where(p_queue => 'single');
    perform bugle.enqueue('noop', p_queue => 'single') from generate_series(1, 2);
    if v_way = 'rescue' then
      v_lost := test.register(p_queues => '{single}');
    end if;
    select c.id, c.claim into v_held from test.claim(case v_way when 'rescue' then v_lost else v_worker end, 5,
      'single') c;
    perform test.equal((select count(*) from bugle.queues_with_work(v_worker, '{single}')), 0::bigint,
      'full before ' || v_way);

    case v_way
      when 'complete' then perform test.complete(v_worker, v_held);
      when 'fail' then perform test.fail(v_worker, v_held);
      when 'fail for good' then perform test.fail(v_worker, v_held, p_retryable => false);
      when 'give back' then perform test.give_back(v_worker, v_held);
      when 'snooze' then perform test.snooze(v_worker, v_held, '1 hour');
      when 'cancel held' then perform test.cancel_held(v_worker, v_held, 'no');
      when 'wait' then perform test.wait(v_worker, v_held);
      when 'cancel' then perform bugle.cancel(v_held.id);
      when 'rescue' then
        perform test.dies(v_lost);
        update bugle.registrations r set lost_at = now() - interval '1 hour' where r.id = v_lost;
        perform bugle.rescue();
    end case;

    perform test.equal((select count(*) from bugle.queues_with_work(v_worker, '{single}')), 1::bigint,
      'room after ' || v_way);
    select c.id, c.claim into v_held from test.claim(v_worker, 5, 'single') c;
    perform test.equal(v_held.id is not null, true, 'the next starts after ' || v_way);
    perform test.complete(v_worker, v_held);
  end loop;
end
$$;

rollback;
