begin;

do $$
declare
  v_first constant bigint := bugle.enqueue('noop', p_idempotency_key => 'm1', p_idempotency_ttl => '1 hour');
  v_second bigint;
  v_third bigint;
begin
  perform test.equal((select k.expires_at from bugle.idempotency_keys k), now() + interval '1 hour',
    'its own time to live');
  perform test.equal(bugle.enqueue('noop', p_idempotency_key => 'm1'), v_first, 'not yet');

  update bugle.idempotency_keys k set expires_at = now();
  v_second := bugle.enqueue('noop', p_idempotency_key => 'm1');
  assert v_second <> v_first, 'a new job by function';
  update bugle.idempotency_keys k set expires_at = now();
  insert into bugle.jobs (command, idempotency_key) values ('noop', 'm1') returning id into v_third;

  perform test.equal((select k.job from bugle.idempotency_keys k), v_third, 'the key is the newest job''s');
end
$$;

rollback;
