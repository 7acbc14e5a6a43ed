begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker);
begin
  perform test.equal(bugle.report_progress(v_worker, test.nonce(v_worker), v_held, 0.25, repeat('x', 2000)), true,
    'reported');

  perform test.equal((test.job(v_held.id)).progress, 0.25::real, 'progress');
  perform test.equal(length((test.job(v_held.id)).progress_note), 1000, 'the length of the note');
  perform test.complete(v_worker, v_held);
  perform test.equal(bugle.report_progress(v_worker, test.nonce(v_worker), v_held, 0.5, null), false, 'after its end');
end
$$;

rollback;
