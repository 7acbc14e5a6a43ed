begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_old constant bugle.held_job := test.running(v_worker);
  v_new bugle.held_job;
begin
  perform test.give_back(v_worker, v_old);
  select c.id, c.claim into v_new from test.claim(v_worker) c;
  perform test.equal(v_new.id, v_old.id, 'the same job');

  perform bugle.complete(v_worker, test.nonce(v_worker),
    array[(v_old.id, v_old.claim, '1')::bugle.finished_job, (v_new.id, v_new.claim, '2')::bugle.finished_job]);

  perform test.equal((test.job(v_new.id)).state, 'completed', 'the job');
  perform test.equal((test.job(v_new.id)).result, '2'::jsonb, 'its result');
end
$$;

rollback;
