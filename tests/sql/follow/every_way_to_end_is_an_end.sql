begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_workflow jsonb;
  v_id bigint;
  v_way text;
begin
  foreach v_way in array array['cancel', 'remove', 'cancel_held', 'reject', 'deadline', 'set_state failed',
    'crash'] loop
    v_workflow := test.workflow('{"a": {"max_attempts": 1}, "b": {"after": ["a"]}, "c": {"after": [{"job": "a", '
      '"on_failure": "run"}]}}');
    v_id := v_workflow -> 'a';
    case v_way
      when 'cancel' then perform bugle.cancel(v_id);
      when 'remove' then perform bugle.remove(v_id);
      when 'cancel_held' then perform test.cancel_held(v_worker, test.running(v_worker, v_id), 'no');
      when 'reject' then
        perform test.wait(v_worker, test.running(v_worker, v_id));
        perform bugle.reject(v_id, 'no');
      when 'deadline' then
        update bugle.jobs_live j set deadline = now() where j.id = v_id;
        perform bugle.expire();
      when 'set_state failed' then perform bugle.set_state(v_id, 'failed');
      when 'crash' then
        perform test.running(v_worker, v_id);
        update bugle.registrations r set stopped_at = now() where r.id = v_worker;
        perform bugle.rescue();
    end case;
    perform test.equal(test.states(v_workflow - 'a'), 'b failed, c ready', v_way);
    perform bugle.cancel((v_workflow -> 'c')::bigint);
  end loop;
end
$$;

rollback;
