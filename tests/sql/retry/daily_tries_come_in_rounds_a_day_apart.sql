begin;

do $$
declare
  v_policy constant bugle.retry_policies := test.policy('daily', p_retries => null, p_delay => '10 min',
    p_per_day => 3, p_days => 2);
  v_first constant timestamptz := '2026-01-01 08:00Z';
begin
  perform test.equal(bugle.attempts_allowed(v_policy), 6, 'three a day, for two days');
  perform test.equal(bugle.backoff(v_policy, 1, v_first, '2026-01-01 08:05Z', 0.5), '2026-01-01 08:15Z',
    'the second try of the first day');
  perform test.equal(bugle.backoff(v_policy, 2, v_first, '2026-01-01 08:20Z', 0.5), '2026-01-01 08:30Z', 'the third');
  perform test.equal(bugle.backoff(v_policy, 3, v_first, '2026-01-01 08:40Z', 0.5), '2026-01-02 08:00Z',
    'the first of the next day');
  perform test.equal(bugle.backoff(v_policy, 4, v_first, '2026-01-02 08:05Z', 0.5), '2026-01-02 08:15Z', 'its second');
  perform test.equal(bugle.backoff(v_policy, 3, v_first, '2026-01-05 09:00Z', 0.5), '2026-01-05 09:00Z',
    'late already: at once');

  perform test.equal(bugle.attempts_allowed(p), 6, 'the policy daily') from bugle.retry_policies p
    where p.name = 'daily';
end
$$;

rollback;
