begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b}');
  v_ids constant bigint[] := array[
    bugle.enqueue('a', p_priority => 5), bugle.enqueue('b', p_priority => 0), bugle.enqueue('a', p_priority => 0),
    bugle.enqueue('b', p_priority => -1), bugle.enqueue('a', p_priority => 5),
    bugle.enqueue('a', p_run_at => now() - interval '1 minute'),
    bugle.enqueue('b', p_priority => 5, p_run_at => now() - interval '1 minute')];
begin
  perform test.equal(array(select c.id from test.claim(v_worker, 3) c), array[v_ids[4], v_ids[6], v_ids[2]],
    'the first three');
  perform test.equal(array(select c.id from test.claim(v_worker, 9) c), array[v_ids[3], v_ids[7], v_ids[1], v_ids[5]],
    'the rest');
end
$$;

rollback;
