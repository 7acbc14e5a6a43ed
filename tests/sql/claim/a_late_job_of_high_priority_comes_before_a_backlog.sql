begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b}');
  v_urgent bigint;
begin
  perform bugle.enqueue('a', p_priority => 5) from generate_series(1, 100);
  v_urgent := bugle.enqueue('b');

  perform test.equal(array(select c.id from test.claim(v_worker) c), array[v_urgent], 'the first');
end
$$;

rollback;
