begin;

do $$
declare
  v_policy constant bugle.retry_policies := test.policy('daily', p_retries => null, p_delay => '10 min',
    p_per_day => 3, p_days => 2);
  v_first constant timestamptz := '2026-01-01 08:00Z';
begin
  perform test.equal(bugle.attempts_allowed(v_policy), 7, 'three retries a day, for two days');
  perform test.equal(bugle.backoff(v_policy, 1, v_first, '2026-01-01 08:05Z', 0.5), '2026-01-01 08:15Z',
    'the first retry of the first day');
  perform test.equal(bugle.backoff(v_policy, 3, v_first, '2026-01-01 08:30Z', 0.5), '2026-01-01 08:40Z', 'the third');
  perform test.equal(bugle.backoff(v_policy, 4, v_first, '2026-01-01 08:50Z', 0.5), '2026-01-02 08:00Z',
    'the first of the next day');
  perform test.equal(bugle.backoff(v_policy, 5, v_first, '2026-01-02 08:05Z', 0.5), '2026-01-02 08:15Z', 'its second');
  perform test.equal(bugle.backoff(v_policy, 4, v_first, '2026-01-05 09:00Z', 0.5), '2026-01-05 09:00Z',
    'late already: at once');

  perform test.equal(bugle.attempts_allowed(p), 7, 'the policy daily') from bugle.retry_policies p
    where p.name = 'daily';
  perform test.equal(bugle.attempts_allowed(test.policy('daily', p_retries => null, p_per_day => 4)), 9,
    'two days, if it says nothing');
end
$$;

rollback;
