begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_id constant bigint := bugle.enqueue('noop', p_priority => -2147483648);
begin
  perform test.equal(array(select c.id from test.claim(v_worker) c), array[v_id], 'claimed');
end
$$;

rollback;
