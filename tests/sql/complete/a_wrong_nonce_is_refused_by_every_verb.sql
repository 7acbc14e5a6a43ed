begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker);
  v_verb text;
begin
  foreach v_verb in array array[
    'complete(%s, %L, array[(%s, 1, null)::bugle.finished_job])',
    'fail(%s, %L, array[(%s, 1, ''boom'', null, true, null)::bugle.failed_job])',
    'give_back(%s, %L, array[(%s, 1)::bugle.held_job])',
    'snooze(%s, %L, (%s, 1)::bugle.held_job, interval ''1 hour'')',
    'cancel_held(%s, %L, (%s, 1)::bugle.held_job, ''no'')',
    'wait(%s, %L, (%s, 1)::bugle.held_job, null, null)',
    'report_progress(%s, %L, (%s, 1)::bugle.held_job, 1, null)',
    'attach(%s, %L, array[(%s, 1)::bugle.held_job])',
    'heartbeat(%s, %L, array[(%s, 1)::bugle.held_job], false)',
    'detach(%s, %L)']
  loop
    perform test.refused(format('select bugle.' || v_verb, v_worker, gen_random_uuid(), v_held.id), 'JB010',
      'there is no worker % with this nonce');
  end loop;
end
$$;

rollback;
