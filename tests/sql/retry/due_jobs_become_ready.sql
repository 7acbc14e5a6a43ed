begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_scheduled constant bigint := bugle.enqueue('noop', p_run_at => now() + interval '1 hour');
  v_later constant bigint := bugle.enqueue('noop', p_run_at => now() + interval '2 hours');
  v_retrying constant bugle.held_job := test.running(v_worker);
  v_answer record;
begin
  perform test.fail(v_worker, v_retrying);
  select * into v_answer from bugle.promote();
  perform test.equal(v_answer.promoted, 0, 'nothing is due');
  update bugle.jobs_live j set run_at = now() where j.id in (v_scheduled, v_retrying.id);

  select * into v_answer from bugle.promote();

  perform test.equal(v_answer.promoted, 2, 'promoted');
  assert v_answer.next_due_seconds between 7100 and 7200, 'the next is due in two hours';
  perform test.equal((test.job(v_scheduled)).state, 'ready', 'the scheduled one');
  perform test.equal(concat_ws(' ', (test.job(v_retrying.id)).state, (test.job(v_retrying.id)).attempt), 'ready 1',
    'the retrying one');
  perform test.equal((test.job(v_later)).state, 'scheduled', 'the later one');
end
$$;

rollback;
