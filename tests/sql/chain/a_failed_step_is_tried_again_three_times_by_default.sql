begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b}');
  v_held constant bugle.held_job := test.running(v_worker, test.chain('{a,b}'));
  v_delay double precision;
begin
  perform test.start_step(v_worker, v_held);
  for v_try in 1 .. 3 loop
    v_delay := test.retry_step(v_worker, v_held, 1, v_try, p_code => 'oops');
    assert v_delay between 0.9 * 2 ^ (v_try - 1) and 1.1 * 2 ^ (v_try - 1), format('after try %s: %s', v_try, v_delay);
    perform test.equal(test.steps(v_held.id), 'a retrying, b pending', 'steps');
    perform test.start_step(v_worker, v_held, v_try + 1);
  end loop;
  perform test.equal(test.retry_step(v_worker, v_held, 1, 4), null::double precision, 'the fourth was the last');
  perform test.equal((select format('%s %s %s %s', s.state, s.attempts, s.code, s.error) from bugle.steps s
    where s.job = v_held.id and s.position = 1),
    'failed 4 oops boom', 'the step');
  assert (select extract(epoch from bugle.backoff(p, 10, now(), now(), 0.5) - now()) = 60 from bugle.retry_policies p
    where p.name = 'step'), 'at most a minute';
end
$$;

rollback;
