begin;

do $$
declare
  v_worker constant bigint := test.register(p_queues => '{narrow,ordered,wide}');
  v_job record;
  v_kind record;
begin
  perform bugle.set_limits('narrow', p_max_running => 1);
  insert into bugle.jobs (command, queue, order_key)
  values ('noop', 'narrow', null), ('noop', 'ordered', 'a'), ('noop', 'wide', null);
  for v_kind in select * from (values ('narrow', true), ('ordered', true), ('wide', false)) k (queue, rings) loop
    select c.* into v_job from test.claim(v_worker, 1, v_kind.queue) c;
    perform test.equal(v_job.address is not null, true, v_kind.queue || ': it has an address');
    -- the session that rings tries the bell first, and remembers it
    perform set_config('bugle.bell', '', true);
    perform bugle.complete_at(v_worker, test.nonce(v_worker), array[v_job.id], array[v_job.claim], array[null::jsonb],
      array[v_job.address]);
    perform test.equal(current_setting('bugle.bell'), case when v_kind.rings then v_kind.queue else '' end,
      v_kind.queue || ': the bell');
    perform test.equal((test.job(v_job.id)).state, 'completed', v_kind.queue || ': it is completed');
  end loop;
end
$$;

rollback;
