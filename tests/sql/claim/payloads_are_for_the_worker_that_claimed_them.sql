begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_id constant bigint := bugle.enqueue('noop', (select jsonb_agg(md5(n::text)) from generate_series(1, 4000) n));
begin
  perform test.claim(v_worker, 1);

  perform test.refused(format('select * from bugle.payloads(%s, gen_random_uuid(), array[%s])', v_worker, v_id),
    'JB010');
  perform test.refused(format('select * from bugle.payloads(%s, null, array[%s])', v_worker, v_id), 'JB010');
  perform test.equal((select count(*) from bugle.payloads(v_worker, test.nonce(v_worker), array[v_id])), 1::bigint,
    'with it');
end
$$;

rollback;
