begin;

do $$
declare
  v_worker constant bigint := test.register();
begin
  perform test.running(v_worker) from generate_series(1, 5);
  perform bugle.detach(v_worker, test.nonce(v_worker));

  perform test.equal(array[bugle.rescue(2), bugle.rescue(2), bugle.rescue(2), bugle.rescue(2)], '{2,2,1,0}'::integer[],
    'rescued');
end
$$;

rollback;
