begin;

do $$
declare
  v_policy bugle.retry_policies;
  v_attempt integer;
  v_random double precision;
  v_delay interval;
begin
  for v_policy in
    select (test.policy(k, case when k not in ('endless', 'daily') then 2147483646 end, d, f, m, j,
      case when k = 'daily' then 10000 end, case when k = 'daily' then 3650 end)).*
    from unnest(array['fixed', 'exponential', 'fixed_then_exponential', 'endless', 'daily']) k,
      unnest(array['0', '1 microsecond', '5 seconds', '10 years']::interval[]) d,
      unnest(array[1, 1.0000001, 2, 1000]::double precision[]) f,
      unnest(array['0', '1 hour', '10 years']::interval[]) m,
      unnest(array[0, 1]::double precision[]) j
  loop
    foreach v_attempt in array array[1, 2, 3, 4, 15, 62, 63, 64, 65, 1000, 1023, 1024, 1025, 32768, 2147483646,
      2147483647] loop
      foreach v_random in array array[0, 0.999999999999] loop
        v_delay := bugle.backoff(v_policy, v_attempt, now(), now(), v_random) - now();
        assert v_delay between '0' and '40 years' or v_policy.kind = 'daily' and v_delay >= '0',
          format('attempt %s of %s: %s', v_attempt, v_policy, v_delay);
      end loop;
    end loop;
    assert bugle.attempts_allowed(v_policy) > 0, format('attempts of %s', v_policy);
  end loop;
end
$$;

rollback;
