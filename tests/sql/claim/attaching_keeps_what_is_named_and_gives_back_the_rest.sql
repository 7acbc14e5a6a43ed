begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_other constant bigint := test.register();
  v_kept constant bugle.held_job := test.running(v_worker);
  v_unheard constant bugle.held_job := test.running(v_worker);
  v_foreign constant bugle.held_job := test.running(v_other);
  v_lost_in_crash constant bigint := bugle.enqueue('noop');
  v_answer text;
begin
  select string_agg(concat_ws(' ', a.id, a.claim, a.verdict), ', ') into v_answer
  from bugle.attach(v_worker, test.nonce(v_worker), array[v_kept, v_foreign, (v_lost_in_crash, 1)::bugle.held_job]) a;

  perform test.equal(v_answer, format('%s 1 fenced', v_foreign.id), 'what it lost');
  perform test.equal((test.job(v_kept.id)).state, 'running', 'what it named');
  perform test.equal((test.job(v_lost_in_crash)).worker, v_worker,
    'a claim that a crash of the server lost is its own again');
  perform test.equal((test.job(v_unheard.id)).state, 'ready', 'what it did not name');
  perform test.equal((test.job(v_unheard.id)).attempt, 0, 'and the attempt is not counted');
end
$$;

rollback;
