begin;

do $$
declare
  v_id constant bigint := bugle.enqueue('noop', p_unique_key => 'k', p_idempotency_key => 'm1');
  v_other bigint;
begin
  insert into bugle.commands (name, queue) values ('noop', 'mail');
  update bugle.jobs_live j set created_at = now() - interval '1 hour';
  perform bugle.cancel(v_id);
  update bugle.idempotency_keys k set job = 4711;
  perform bugle.restart(v_id);

  perform test.equal((test.job(v_id)).unique_key, 'k', 'its unique_key');
  perform test.equal((test.job(v_id)).idempotency_key, 'm1', 'its idempotency_key');
  perform test.equal((test.job(v_id)).queue, 'default', 'its queue: a template is for new jobs');
  perform test.equal((select k.job from bugle.idempotency_keys k), 4711::bigint,
    'a key that another job got meanwhile');

  perform bugle.cancel(v_id);
  v_other := bugle.enqueue('noop', p_unique_key => 'k');
  perform test.refused(format('select bugle.restart(%s)', v_id), 'JB031',
    format('cannot restart job %s: job %s with the same unique_key is live', v_id, v_other));
end
$$;

rollback;
