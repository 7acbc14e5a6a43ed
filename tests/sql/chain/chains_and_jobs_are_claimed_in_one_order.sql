begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b,noop}');
  v_first constant bigint := bugle.enqueue('noop');
  v_second constant bigint := test.chain('{a,b}');
  v_third constant bigint := bugle.enqueue('noop');
  v_urgent constant bigint := bugle.enqueue('other', p_steps => '{b}', p_priority => -1);
begin
  perform test.equal(array(select c.id from test.claim(v_worker, 2) c), array[v_urgent, v_first], 'the first two');
  perform test.equal(array(select c.id from test.claim(v_worker, 2) c), array[v_second, v_third], 'the next two');
end
$$;

rollback;
