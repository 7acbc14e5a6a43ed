begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_other constant bigint := test.register();
  v_large constant jsonb := (select jsonb_agg(md5(n::text)) from generate_series(1, 4000) n);
  v_small constant bigint := bugle.enqueue('noop', '{"a": 1}');
  v_id constant bigint := bugle.enqueue('noop', v_large);
  v_ready bigint;
begin
  perform test.equal(array(select c.payload from test.claim(v_worker, 2) c order by c.id),
    array['{"a": 1}', null]::jsonb[], 'with the claim');
  v_ready := bugle.enqueue('noop', v_large);

  perform test.equal((select jsonb_object_agg(p.id, p.payload)
    from bugle.payloads(v_worker, test.nonce(v_worker), array[v_id, v_small, v_ready]) p),
    jsonb_build_object(v_id, v_large, v_small, '{"a": 1}'::jsonb), 'afterwards, of what it runs');
  perform test.equal((select array_agg(p.claim) from bugle.payloads(v_worker, test.nonce(v_worker), array[v_id]) p),
    '{1}'::bigint[], 'with the claim number');
  perform test.equal((select count(*) from bugle.payloads(v_other, test.nonce(v_other),
    array[v_id, v_small, v_ready])), 0::bigint, 'nobody else');
end
$$;

rollback;
