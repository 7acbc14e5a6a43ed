begin;

do $$
declare
  v_worker constant bigint := test.register('{noop,plain}');
  v_policy constant text := (test.policy('fixed', p_retries => 0)).name;
  v_held bugle.held_job;
begin
  insert into bugle.commands (name, retry_policy, max_attempts) values ('noop', v_policy, 2);

  v_held := test.running(v_worker, bugle.enqueue('noop', p_max_attempts => 1));
  perform test.fail(v_worker, v_held);
  perform test.equal((test.job(v_held.id)).state, 'failed', 'the job''s own: 1');
  v_held := test.running(v_worker, bugle.enqueue('noop'));
  perform test.fail(v_worker, v_held);
  perform test.equal((test.job(v_held.id)).state, 'retrying', 'its command''s: 2');
  v_held := test.running(v_worker, bugle.enqueue('plain', p_retry_policy => v_policy));
  perform test.fail(v_worker, v_held);
  perform test.equal((test.job(v_held.id)).state, 'failed', 'its policy''s: no retries, 1');
  v_held := test.running(v_worker, bugle.enqueue('plain', p_retry_policy => 'none'));
  perform test.fail(v_worker, v_held);
  perform test.equal((test.job(v_held.id)).state, 'failed', 'the policy none');
end
$$;

rollback;
