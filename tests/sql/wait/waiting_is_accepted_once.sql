begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker);
begin
  perform test.wait(v_worker, v_held, 'secret', '1 hour');

  perform test.equal(test.wait(v_worker, v_held, 'other', '2 hours'), 'repeated', 'said again');
  perform test.equal((test.job(v_held.id)).answer_token, bugle.token_hash('secret'), 'the token is the first one');
end
$$;

rollback;
