begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_id constant bigint := bugle.enqueue('noop');
begin
  update bugle.registrations r set lost_at = clock_timestamp() - interval '1 hour' where r.id = v_worker;

  perform test.refused(format('select test.claim(%s)', v_worker), 'JB011');
  perform test.equal((test.job(v_id)).state, 'ready', 'the job');

  perform bugle.attach(v_worker, test.nonce(v_worker), '{}');
  perform test.equal((select c.id from test.claim(v_worker) c), v_id, 'claimed');
  perform test.equal(bugle.rescue(), 0, 'rescued');
end
$$;

rollback;
