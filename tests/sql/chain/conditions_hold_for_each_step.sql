begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b,chained}');
  v_nonce constant uuid := test.nonce(v_worker);
  v_held bugle.held_job;
begin
  insert into bugle.commands (name, retry_when, wait_when) values ('a', '$.again', null), ('b', null, '$.later'),
    ('chained', '$.a.again', null);
  v_held := test.running(v_worker, bugle.enqueue('chained', p_steps => '{a,b}'));
  perform bugle.start_step(v_worker, v_nonce, v_held);
  perform test.equal((select f.verdict from bugle.finish_step(v_worker, v_nonce, v_held, 1, 1, '{"again": 1}') f),
    'retry_when', 'the first step');
  perform test.equal((select r.state from bugle.step_records r where r.job = v_held.id), 'running',
    'has not ended');
  perform test.equal(
    (select f.position from bugle.finish_step(v_worker, v_nonce, v_held, 1, 1, '{"again": 1}', true) f),
    2, 'unless it is skipped');
  perform test.equal((select f.verdict from bugle.finish_step(v_worker, v_nonce, v_held, 2, 1, '{"later": true}') f),
    'wait_when', 'the second step');
  perform test.equal((select f.verdict from bugle.finish_step(v_worker, v_nonce, v_held, 2, 1, '{}') f), null, 'done');
  perform test.equal((select j.state from bugle.jobs j where j.id = v_held.id), 'completed', 'the chain');
end
$$;

rollback;
