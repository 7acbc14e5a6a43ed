begin;

do $$
declare
  v_worker constant bigint := test.register('{order,noop}');
  v_held bugle.held_job;
begin
  insert into bugle.commands (name, wait_when) values ('order', '$.status == "accepted"');

  v_held := test.running(v_worker, bugle.enqueue('order'));
  perform test.equal(test.complete(v_worker, v_held, '{"status": "accepted", "ticket": 7}'), 'wait_when',
    'the verdict');
  perform test.equal((select concat_ws(' ', j.state, j.result ->> 'ticket') from bugle.jobs j where j.id = v_held.id),
    'waiting 7', 'it waits, with the result');
  perform test.equal((select a.outcome from bugle.attempts a where a.job = v_held.id), 'waiting', 'the attempt');
  perform bugle.resolve(v_held.id, '{"status": "shipped"}');
  perform test.equal((select concat_ws(' ', j.state, j.result ->> 'status') from bugle.jobs j where j.id = v_held.id),
    'completed shipped', 'the answer is its result');

  v_held := test.running(v_worker, bugle.enqueue('order'));
  perform test.equal(test.complete(v_worker, v_held, '{"status": "shipped"}'), null, 'another result completes it');
end
$$;

rollback;
