begin;

do $$
declare
  v_zombie constant bigint := test.register();
  v_stale constant bugle.held_job := test.running(v_zombie);
  v_worker bigint;
  v_held bugle.held_job;
begin
  perform test.equal((select count(*) from bugle.dependency_results(v_zombie, test.nonce(v_zombie), v_stale)),
    0::bigint, 'it has no children');
  perform test.give_back(v_zombie, v_stale);
  v_worker := test.register();
  v_held := test.running(v_worker, v_stale.id);
  perform bugle.spawn(v_worker, test.nonce(v_worker), v_held, '[{"command": "noop"}]');
  perform test.equal((select string_agg(concat_ws(' ', k.verdict, k.job), ', ')
    from bugle.dependency_results(v_zombie, test.nonce(v_zombie), v_stale) k),
    'fenced', 'the one that was lost');
  perform test.equal((select string_agg(concat_ws(' ', k.verdict, k.job), ', ')
    from bugle.dependency_results(v_worker, test.nonce(v_worker), v_held) k),
    'repeated', 'the one that waits now');
end
$$;

rollback;
