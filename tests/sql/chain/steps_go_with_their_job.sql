begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b}');
  v_held bugle.held_job := test.running(v_worker, test.chain('{a,b}'));
begin
  perform test.start_step(v_worker, v_held);
  perform test.fail(v_worker, v_held);
  perform bugle.remove(v_held.id);
  perform test.equal((select count(*) from bugle.step_records r where r.job = v_held.id), 0::bigint, 'removed with it');

  insert into bugle.step_records (job, position, name, state, updated_at)
  values (987654321, 1, 'old', 'done', now() - interval '100 days'),
    (test.chain(), 1, 'live', 'done', now() - interval '100 days');
  perform bugle.prune();
  perform test.equal((select string_agg(r.name, ' ') from bugle.step_records r), 'live', 'pruned with its history');

  update bugle.settings set keep_completed = false;
  v_held := test.running(v_worker, test.chain('{a}', p_command => 'short'));
  perform test.start_step(v_worker, v_held);
  perform test.finish_step(v_worker, v_held, 1);
  perform test.equal((select count(*) from bugle.step_records r where r.job = v_held.id), 0::bigint,
    'gone with a job that is not kept');
end
$$;

rollback;
