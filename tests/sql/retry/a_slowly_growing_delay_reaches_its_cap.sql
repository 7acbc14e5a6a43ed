begin;

do $$
declare
  v_policy constant bugle.retry_policies := test.policy('endless', null, '5 seconds', 1.01, '1 hour');
begin
  perform test.equal((test.delays(v_policy, 1000))[1000], '1 hour', 'after a thousand attempts');
end
$$;

rollback;
