begin;

do $$
declare
  v_policy bugle.retry_policies := bugle.policy_of(jsonb_populate_record(null::bugle.jobs, '{"command": "noop"}'));
begin
  perform test.equal(v_policy.name, 'default', 'the policy of a job that says nothing');
  perform test.equal(bugle.attempts_allowed(v_policy), 16, 'attempts');
  perform test.equal(v_policy.jitter, 0.1::double precision, 'jitter');
  perform test.equal(test.delays(v_policy, 15), array[
      '5 s', '10 s', '20 s', '40 s', '80 s', '160 s', '320 s', '640 s', '1280 s', '2560 s', '1 h', '1 h', '1 h', '1 h',
        '1 h'
    ]::interval[], 'delays in the middle of the jitter');
  perform test.equal((test.delays(v_policy, 1, 0))[1], '4.5 s', 'the shortest first delay');
  perform test.equal((test.delays(v_policy, 1, 1))[1], '5.5 s', 'the longest first delay');
  perform test.equal((test.delays(v_policy, 15, 0))[15], '54 min', 'the shortest at the cap');
  perform test.equal((test.delays(v_policy, 15, 1))[15], '66 min', 'the longest at the cap: jitter comes after it');
end
$$;

rollback;
