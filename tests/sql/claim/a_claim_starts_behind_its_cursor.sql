begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_ids constant bigint[] := array[bugle.enqueue('noop'), bugle.enqueue('noop'), bugle.enqueue('noop'),
    bugle.enqueue('noop', p_priority => 1)];
  v_nonce constant uuid := test.nonce(v_worker);
begin
  perform test.equal(array(
    select c.id from bugle.claim(v_worker, v_nonce,
      array[('default', 2, (0, now(), v_ids[2]), 'awake')::bugle.queue_request]) c
      order by c.priority, c.id),
    array[v_ids[3], v_ids[4]], 'behind the second');
  perform test.equal(array(
    select c.id from bugle.claim(v_worker, v_nonce,
      array[('default', 2, (1, now(), v_ids[4]), 'awake')::bugle.queue_request]) c),
    '{}'::bigint[], 'behind the last');
  perform test.equal(array(
    select c.id from bugle.claim(v_worker, v_nonce, array[('default', 2, null, 'awake')::bugle.queue_request]) c
      order by c.priority, c.id),
    array[v_ids[1], v_ids[2]], 'from the start');
end
$$;

rollback;
