begin;

do $$
declare
  v_worker constant bigint := test.register();
begin
  perform bugle.enqueue('noop');
  perform bugle.pause_worker(v_worker);
  perform test.equal((select count(*) from test.claim(v_worker)), 0::bigint, 'paused');
  perform bugle.resume_worker(v_worker);
  perform test.equal((select count(*) from test.claim(v_worker)), 1::bigint, 'resumed');
  perform test.refused('select bugle.drain_worker(999999999)', 'JB030');
end
$$;

rollback;
