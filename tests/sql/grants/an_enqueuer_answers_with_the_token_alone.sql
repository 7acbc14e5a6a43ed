begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job;
  v_ids bigint[] := '{}';
begin
  for n in 1 .. 3 loop
    v_held := test.running(v_worker);
    v_ids := v_ids || v_held.id;
    perform test.wait(v_worker, v_held, 'secret');
  end loop;
  v_held := test.running(v_worker);
  perform test.wait(v_worker, v_held);

  set local role bugle_enqueuer;
  perform test.refused(format('select bugle.resolve(%s, null, ''secret'')', v_ids[1]), '42501');
  perform test.refused(format('select bugle.resume_with(%s, null, ''secret'')', v_ids[1]), '42501');
  perform test.refused(format('select bugle.answer(%s, ''guess'')', v_ids[1]), 'JB032');
  perform test.refused(format('select bugle.answer(%s, null)', v_ids[1]), 'JB032');
  perform test.refused(format('select bugle.answer(%s, ''any'')', v_held.id), 'JB032',
    '%cannot be answered without a token');
  perform test.refused(format('select bugle.answer(%s, ''secret'', ''1'', ''both'')', v_ids[1]), 'JB001');
  perform bugle.answer(v_ids[1], 'secret', '"yes"');
  perform bugle.answer(v_ids[2], 'secret', p_error => 'no');
  perform bugle.answer(v_ids[3], 'secret', '"go on"', p_resume => true);
  reset role;

  perform test.equal((select string_agg(concat_ws(' ', j.state, j.result, j.last_error, j.answer), ', ' order by j.id)
    from bugle.jobs j where j.id = any (v_ids)),
    'completed "yes", failed no, ready "go on"', 'each as told');
end
$$;

rollback;
