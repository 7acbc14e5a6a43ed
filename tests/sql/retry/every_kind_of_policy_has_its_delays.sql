begin;

do $$
begin
  perform test.equal(test.delays(test.policy('fixed', p_delay => '7 s', p_max_delay => '1 s'), 4),
    '{7 s,7 s,7 s,7 s}'::interval[], 'fixed: always the same');
  perform test.equal(test.delays(test.policy('exponential', p_delay => '2 s', p_factor => 3, p_max_delay => '50 s'), 5),
    '{2 s,6 s,18 s,50 s,50 s}'::interval[], 'exponential: up to the cap');
  perform test.equal(test.delays(test.policy('fixed_then_exponential', p_delay => '2 s', p_max_delay => '15 s'), 7),
    '{2 s,2 s,2 s,4 s,8 s,15 s,15 s}'::interval[], 'the first three fixed, then exponential');
  perform test.equal(test.delays(test.policy('endless', p_retries => null, p_delay => '2 s', p_max_delay => '9 s'), 5),
    '{2 s,4 s,8 s,9 s,9 s}'::interval[], 'endless: exponential');
end
$$;

rollback;
