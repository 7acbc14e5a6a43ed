begin;

do $$
declare
  v_id constant bigint := bugle.enqueue('noop', p_unique_key => 'k');
begin
  insert into bugle.jobs (command, unique_key, idempotency_key) values ('noop', 'k', 'm1') on conflict do nothing;
  perform test.equal((select count(*) from bugle.idempotency_keys), 0::bigint, 'no key');

  perform test.equal(bugle.enqueue('noop', p_unique_key => 'k', p_idempotency_key => 'm1'), v_id, 'the unique one');
  perform test.equal((select k.job from bugle.idempotency_keys k), v_id, 'the message is that job''s now');
end
$$;

rollback;
