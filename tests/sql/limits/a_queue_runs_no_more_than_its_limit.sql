begin;

do $$
declare
  v_worker constant bigint := test.register(p_queues => '{narrow}');
  v_other constant bigint := test.register(p_queues => '{narrow}');
  v_ids bigint[];
begin
  perform bugle.set_limits('narrow', p_max_running => 3);
  perform bugle.enqueue('noop', p_queue => 'narrow') from generate_series(1, 10);

  v_ids := array(select c.id from test.claim(v_worker, 2, 'narrow') c);
  perform test.equal(cardinality(v_ids), 2, 'within the limit as many as asked for');
  perform test.equal((select count(*) from test.claim(v_other, 10, 'narrow')), 1::bigint,
    'what another runs counts too');
  perform test.equal((select count(*) from test.claim(v_worker, 10, 'narrow')), 0::bigint, 'no more at the limit');
  perform test.equal((select count(*) from bugle.queues_with_work(v_worker, '{narrow}')), 0::bigint,
    'and nothing to look for');

  perform test.complete(v_worker, (select (j.id, j.claim)::bugle.held_job from bugle.jobs j where j.id = v_ids[1]));
  perform test.equal((select count(*) from bugle.queues_with_work(v_worker, '{narrow}')), 1::bigint,
    'an end makes room');
  perform test.equal((select count(*) from test.claim(v_worker, 10, 'narrow')), 1::bigint, 'for one');

  perform bugle.set_limits('narrow', p_max_running => 5);
  perform test.equal((select count(*) from test.claim(v_worker, 10, 'narrow')), 2::bigint,
    'a raised limit holds at once');
  perform bugle.set_limits('narrow', p_max_running => 2);
  perform test.equal((select count(*) from test.claim(v_worker, 10, 'narrow')), 0::bigint,
    'a lowered one too; what runs goes on');
  perform test.equal((select count(*) from bugle.jobs j where j.queue = 'narrow' and j.state = 'running'), 5::bigint,
    'all five');
  perform bugle.set_limits('narrow', p_max_running => 0);
  perform test.equal((select count(*) from test.claim(v_worker, 10, 'narrow')), 4::bigint,
    'and without a limit the rest');
end
$$;

rollback;
