begin;

do $$
declare
  v_worker constant bigint := test.register();
begin
  perform bugle.enqueue('noop');

  perform test.equal((select count(*) from bugle.claim(v_worker, test.nonce(v_worker), null)), 0::bigint, 'for null');
  perform test.equal((select count(*) from bugle.claim(v_worker, test.nonce(v_worker), '{}')), 0::bigint, 'for none');
end
$$;

rollback;
