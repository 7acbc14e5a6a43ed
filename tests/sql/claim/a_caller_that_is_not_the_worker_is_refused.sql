begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_request constant text := $sql$array[('default', 1, null, 'awake')::bugle.queue_request]$sql$;
begin
  perform bugle.enqueue('noop');

  perform test.refused(format('select bugle.claim(%s, gen_random_uuid(), %s)', v_worker, v_request),
    'JB010', format('there is no worker %s with this nonce', v_worker));
  perform test.refused(format('select bugle.claim(-1, %L, %s)', test.nonce(v_worker), v_request), 'JB010',
    'there is no worker -1 %');
  perform test.refused(format('select bugle.claim(null, null, %s)', v_request), 'JB010');
end
$$;

rollback;
