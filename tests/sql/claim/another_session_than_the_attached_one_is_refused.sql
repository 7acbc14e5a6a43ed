begin;

do $$
declare
  v_worker constant bigint := test.register();
begin
  perform bugle.enqueue('noop');
  update bugle.registrations r set backend_pid = 0 where r.id = v_worker;

  perform test.refused(format('select test.claim(%s)', v_worker), 'JB011',
    format('worker %s is attached from another session than this one', v_worker));

  perform bugle.attach(v_worker, test.nonce(v_worker), '{}');
  perform test.equal((select count(*) from test.claim(v_worker)), 1::bigint, 'after attaching here');
end
$$;

rollback;
