begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b}');
  v_held constant bugle.held_job := test.running(v_worker, test.chain('{a,b}'));
  v_policy constant bugle.retry_policies := test.policy('fixed', 1, '7 seconds', p_max_delay => '10 seconds');
begin
  insert into bugle.commands (name, step_retry_policy, timeout) values ('a', v_policy.name, '9 seconds');
  perform test.equal((select n.timeout_seconds from bugle.start_step(v_worker, test.nonce(v_worker), v_held) n),
    9::double precision, 'its time limit');
  perform test.equal(test.retry_step(v_worker, v_held, 1, 1), 7::double precision, 'its delay');
  perform test.equal(test.retry_step(v_worker, v_held, 1, 1, p_retry_after => 3), 3::double precision,
    'the executor knows better');
  perform test.equal(test.retry_step(v_worker, v_held, 1, 1, p_retry_after => 11), null::double precision,
    'but nobody waits longer than the policy would');
  perform test.equal(test.retry_step(v_worker, v_held, 1, 1, p_retryable => false), null::double precision,
    'not retryable');
  perform test.equal(test.retry_step(v_worker, v_held, 1, 2), null::double precision, 'one retry');
  update bugle.settings set step_timeout = '11 seconds';
  perform test.equal((select n.default_timeout_seconds
    from bugle.finish_step(v_worker, test.nonce(v_worker), v_held, 1, 1, null) n), 11::double precision, 'the setting');
end
$$;

rollback;
