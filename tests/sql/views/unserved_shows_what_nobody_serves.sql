begin;

do $$
declare
  v_worker constant bigint := test.register('{noop}', '{default}');
  v_first bigint;
begin
  v_first := bugle.enqueue('noop', p_queue => 'other');
  perform bugle.enqueue('noop', p_queue => 'other'), bugle.enqueue('noop'), bugle.enqueue('unknown'),
    bugle.enqueue('later', p_run_at => now() + interval '1 day');

  perform test.equal((select string_agg(concat_ws(' ', u.queue, u.command), ', ' order by u.queue, u.command)
    from bugle.unserved u),
    'default unknown, other noop', 'unserved');
  perform test.equal((select u.first_job from bugle.unserved u where u.queue = 'other'), v_first, 'the first of them');

  perform bugle.pause_worker(v_worker);
  perform test.equal((select string_agg(concat_ws(' ', u.queue, u.command, u.paused_workers), ', ' order by u.queue,
    u.command) from bugle.unserved u),
    format('default noop {%s}, default unknown, other noop', v_worker), 'when its only worker is paused');
  perform bugle.resume_worker(v_worker);

  perform test.dies(v_worker);
  perform bugle.note_lost(0);
  perform test.equal((select count(*) from bugle.unserved), 3::bigint, 'when the worker is lost');
  update bugle.registrations r set lost_at = null where r.id = v_worker;
  perform test.equal((select count(*) from bugle.unserved), 2::bigint, 'when it is back');
  perform bugle.detach(v_worker, test.nonce(v_worker));
  perform test.equal((select count(*) from bugle.unserved), 3::bigint, 'when it has signed off');
end
$$;

rollback;
