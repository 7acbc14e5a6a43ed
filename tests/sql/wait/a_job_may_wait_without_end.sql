begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job := test.running(v_worker);
begin
  perform test.wait(v_worker, v_held, p_for => null);
  perform test.equal((test.job(v_held.id)).answer_by, null, 'answer_by');
  perform test.equal(bugle.expire(), 0, 'nothing is overdue');

  v_held := test.running(v_worker);
  perform test.wait(v_worker, v_held, p_for => '170000000 years');
  perform test.equal((test.job(v_held.id)).answer_by, now() + interval '10 years', 'or for as long as a time can say');
end
$$;

rollback;
