begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_first constant record := bugle.enqueue_once('noop', p_idempotency_key => 'm1');
  v_again record;
  v_inserted bigint;
begin
  perform test.complete(v_worker, test.running(v_worker, v_first.id));
  v_again := bugle.enqueue_once('noop', p_idempotency_key => 'm1');

  perform test.equal(v_first.created, true, 'the first is new');
  perform test.equal(v_again.id, v_first.id, 'the second is the first');
  perform test.equal(v_again.created, false, 'and not new');
  perform test.equal(bugle.enqueue('noop', p_idempotency_key => 'm1'), v_first.id, 'enqueue answers with the id');
  perform test.refused($sql$insert into bugle.jobs (command, idempotency_key) values ('noop', 'm1')$sql$,
    '23505', format('job %s has the command ''noop'' and the idempotency_key ''m1'' already', v_first.id));
  perform test.refused($sql$insert into bugle.jobs (command, idempotency_key) values ('noop', 'm1')
    on conflict do nothing$sql$, '23505');
  perform test.equal((test.job(v_first.id)).idempotency_key, 'm1', 'history keeps the key');
  perform test.equal((select k.expires_at from bugle.idempotency_keys k), now() + interval '24 hours', 'a day');

  insert into bugle.jobs (command, idempotency_key) values ('other', 'm1') returning id into v_inserted;
  perform test.equal(bugle.enqueue('other', p_idempotency_key => 'm1'), v_inserted, 'an INSERT keeps its key too');
  perform test.refused($sql$insert into bugle.jobs (command, idempotency_key) values ('noop', 'm2'),
    ('noop', 'm2')$sql$, '23505');
end
$$;

rollback;
