begin;

create function pg_temp.next(p_worker bigint, p_queue text) returns bigint language sql as $$ select c.id
  from test.claim(p_worker, 1, p_queue) c $$;

do $$
declare
  v_worker constant bigint := test.register(p_queues => '{block,pass}');
  v_queue text;
  v_state text;
  v_first bigint;
  v_second bigint;
  v_held bugle.held_job;
  v_next bigint;
begin
  perform bugle.set_limits('pass', p_order_on_retry => 'pass');
  foreach v_queue in array array['block', 'pass'] loop
    foreach v_state in array array['scheduled', 'snoozed', 'retrying', 'paused', 'waiting'] loop
      v_first := bugle.enqueue('noop', p_queue => v_queue, p_order_key => v_state,
        p_run_at => case v_state when 'scheduled' then now() + interval '1 hour' end);
      v_second := bugle.enqueue('noop', p_queue => v_queue, p_order_key => v_state);
      if v_state = 'paused' then
        perform bugle.pause(v_first);
      elsif v_state <> 'scheduled' then
        select c.id, c.claim into v_held from test.claim(v_worker, 1, v_queue) c;
        perform test.equal(v_held.id, v_first, 'the first starts');
        case v_state
          when 'snoozed' then perform test.snooze(v_worker, v_held, '1 hour');
          when 'retrying' then perform test.fail(v_worker, v_held);
          when 'waiting' then perform test.wait(v_worker, v_held);
        end case;
      end if;

      v_next := pg_temp.next(v_worker, v_queue);

      if v_queue = 'pass' or v_state = 'scheduled' then
        perform test.equal(v_next, v_second, format('%s: one that is %s lets others pass', v_queue, v_state));
      else
        perform test.equal(v_next, null::bigint, format('%s: one that is %s holds the others up', v_queue, v_state));
        perform test.equal((select count(*) from bugle.queues_with_work(v_worker, array[v_queue])), 0::bigint,
          'and nothing is there');
        perform bugle.cancel(v_first);
        perform test.equal(pg_temp.next(v_worker, v_queue), v_second, 'until it is gone');
      end if;
      perform bugle.cancel(v_second);
    end loop;
  end loop;

  -- a job that was scheduled takes its place by id when it is due
  v_first := bugle.enqueue('noop', p_queue => 'block', p_order_key => 'due', p_run_at => now() + interval '1 hour');
  v_second := bugle.enqueue('noop', p_queue => 'block', p_order_key => 'due');
  perform bugle.reschedule(v_first, now());
  perform test.equal(pg_temp.next(v_worker, 'block'), v_first, 'by id');
end
$$;

rollback;
