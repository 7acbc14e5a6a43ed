begin;

do $$
declare
  v_id constant bigint := bugle.enqueue('noop');
begin
  perform bugle.pause(v_id);
  perform bugle.reschedule(v_id, now() + interval '1 hour');
  perform test.equal((test.job(v_id)).state, 'paused', 'rescheduled');

  perform test.equal(bugle.resume(v_id), 'scheduled', 'resumed');

  perform bugle.pause(v_id);
  perform bugle.reschedule(v_id, now());
  perform bugle.resume(v_id);
  perform bugle.promote();
  perform test.equal((test.job(v_id)).state, 'ready', 'due at once');
end
$$;

rollback;
