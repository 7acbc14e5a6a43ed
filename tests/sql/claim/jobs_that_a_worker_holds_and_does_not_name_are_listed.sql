begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_other constant bigint := test.register();
  v_named constant bugle.held_job := test.running(v_worker);
  v_unnamed constant bugle.held_job := test.running(v_worker);
  v_foreign constant bugle.held_job := test.running(v_other);
  v_ready constant bigint := bugle.enqueue('noop');
  v_answer text;
begin
  select string_agg(concat_ws(' ', u.id, u.claim), ', ') into v_answer
  from bugle.unnamed(v_worker, test.nonce(v_worker), array[v_named, v_foreign]) u;
  perform test.equal(v_answer, format('%s 1', v_unnamed.id), 'what it does not name');

  select string_agg(concat_ws(' ', u.id, u.claim), ', ') into v_answer
  from bugle.unnamed(v_worker, test.nonce(v_worker), array[v_named, (v_unnamed.id, 2)::bugle.held_job]) u;
  perform test.equal(v_answer, format('%s 1', v_unnamed.id), 'what it names under another claim');

  perform test.equal((test.job(v_unnamed.id)).state, 'running', 'asking changes nothing');
  perform test.refused(format('select bugle.unnamed(%s, gen_random_uuid(), ''{}'')', v_worker), 'JB010');
end
$$;

rollback;
