begin;

do $$
declare
  v_worker constant bigint := test.register('{noop,plain}');
  v_own constant text := (test.policy('fixed', p_delay => '1 second')).name;
  v_commands constant text := (test.policy('fixed', p_delay => '2 seconds')).name;
  v_held bugle.held_job;
begin
  update bugle.retry_policies p set kind = 'fixed', delay = '3 seconds', jitter = 0 where p.name = 'default';
  insert into bugle.commands (name, retry_policy) values ('noop', v_commands);

  v_held := test.running(v_worker, bugle.enqueue('noop', p_retry_policy => v_own));
  perform test.fail(v_worker, v_held);
  perform test.equal((test.job(v_held.id)).run_at - now(), '1 second', 'the job''s own');
  v_held := test.running(v_worker, bugle.enqueue('noop'));
  perform test.fail(v_worker, v_held);
  perform test.equal((test.job(v_held.id)).run_at - now(), '2 seconds', 'its command''s');
  v_held := test.running(v_worker, bugle.enqueue('plain'));
  perform test.fail(v_worker, v_held);
  perform test.equal((test.job(v_held.id)).run_at - now(), '3 seconds', 'the default');
  v_held := test.running(v_worker, bugle.enqueue('noop', p_retry_policy => 'default'));
  perform test.fail(v_worker, v_held);
  perform test.equal((test.job(v_held.id)).run_at - now(), '3 seconds', 'the default, if the job names it');
end
$$;

rollback;
