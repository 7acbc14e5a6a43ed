begin;

do $$
declare
  v_worker constant bigint := test.register();
begin
  perform bugle.enqueue('noop');
  perform bugle.detach(v_worker, test.nonce(v_worker));

  perform test.refused(format('select test.claim(%s)', v_worker), 'JB010');
  perform test.refused(format('select bugle.attach(%s, %L, ''{}'')', v_worker, test.nonce(v_worker)), 'JB010',
    '%signed off');
end
$$;

rollback;
