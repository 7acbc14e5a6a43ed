begin;

select bugle.enqueue('noop');
set local role bugle_worker;

do $$
declare
  v_me record;
  v_held bugle.held_job;
begin
  select * into v_me from bugle.register('w', 'h', 1, 'v', bugle.protocol(), '{default}', '{1}', '{noop}');
  select c.id, c.claim into v_held from bugle.claim(v_me.worker, v_me.nonce,
    array[('default', 1, null, 'awake')::bugle.queue_request]) c;
  perform bugle.payloads(v_me.worker, v_me.nonce, array[v_held.id]);
  perform bugle.report_progress(v_me.worker, v_me.nonce, v_held, 1, 'x');
  perform bugle.heartbeat(v_me.worker, v_me.nonce, array[v_held], true);
  perform bugle.give_back(v_me.worker, v_me.nonce, array[v_held]);
  perform bugle.snooze(v_me.worker, v_me.nonce, v_held, '1 s'), bugle.wait(v_me.worker, v_me.nonce, v_held, 'x', '1 s'),
    bugle.cancel_held(v_me.worker, v_me.nonce, v_held, 'x');
  perform bugle.fail(v_me.worker, v_me.nonce, '{}'), bugle.complete(v_me.worker, v_me.nonce, '{}');
  perform bugle.arm(v_me.worker, '{default}'), bugle.stand_down('{default}', '{sentinel}');
  perform bugle.attach(v_me.worker, v_me.nonce, '{}'), bugle.promote(), bugle.expire(), bugle.upkeep(),
    bugle.detach(v_me.worker, v_me.nonce);
  perform bugle.schema_state(), bugle.bell_channel('default'), bugle.worker_channel(v_me.worker);
end
$$;
select test.refused(s, '42501')
from unnest(array['select id from bugle.jobs', 'insert into bugle.jobs (command) values (''noop'')',
  'update bugle.jobs_live set priority = 1',
  'select * from bugle.registrations', 'select bugle.resolve(1)', 'select bugle.end_jobs(''{}'')',
    'select bugle.prove_life(1)',
  'select bugle.add_day(''ended'', ''2001-01-01'')', 'select bugle.try_to_terminate(1)',
    'select bugle.keep_trigger(''bugle.jobs'', ''x'', ''x'')']) s;

rollback;
