begin;

do $$
declare
  v_policy constant bugle.retry_policies := test.policy('exponential', 5, '10 seconds', 2, '30 seconds', 0.5);
  v_delays interval[];
begin
  for n in 1..1000 loop
    v_delays := v_delays || (bugle.backoff(v_policy, 5, now(), now(), random()) - now());
  end loop;

  assert (select bool_and(d between '15 s' and '45 s') and min(d) < '20 s' and max(d) > '40 s' from unnest(v_delays) d),
    'a delay at the cap of 30 s is spread from 15 s to 45 s';
end
$$;

rollback;
