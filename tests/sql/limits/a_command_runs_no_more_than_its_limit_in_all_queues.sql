begin;

do $$
declare
  v_worker constant bigint := test.register('{heavy,light}', '{one,two}');
  v_held bugle.held_job;
begin
  perform bugle.set_command_limit('heavy', 2);
  perform bugle.enqueue('heavy', p_queue => 'one') from generate_series(1, 5);
  perform bugle.enqueue('heavy', p_queue => 'two') from generate_series(1, 5);
  perform bugle.enqueue('light', p_queue => 'two') from generate_series(1, 3);

  select c.id, c.claim into v_held from test.claim(v_worker, 1, 'one') c;
  perform test.equal(array(select c.command from test.claim(v_worker, 10, 'two') c order by 1),
    '{heavy,light,light,light}'::text[],
    'one is left for the other queue, and others are not in its way');
  perform test.equal((select count(*) from bugle.queues_with_work(v_worker, '{one,two}')), 0::bigint, 'the rest waits');
  perform test.complete(v_worker, v_held);
  perform test.equal((select count(*) from bugle.queues_with_work(v_worker, '{one,two}')), 2::bigint,
    'an end makes room in either');
  perform test.equal((select count(*) from test.claim(v_worker, 10, 'two')), 1::bigint, 'for one');
  perform bugle.set_command_limit('heavy', 0);
  perform test.equal((select count(*) from test.claim(v_worker, 10, 'one')), 4::bigint, 'without a limit the rest');
end
$$;

rollback;
