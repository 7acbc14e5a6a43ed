begin;

do $$
declare
  v_worker constant bigint := test.register('{noop}', '{default}', 5);
  v_nonce constant uuid := test.nonce(v_worker);
  v_none constant bigint[] := array_fill(0::bigint, array[21]);
begin
  perform test.refused(format('select bugle.report_minutes(%s, gen_random_uuid(), %L)', v_worker, '{}'), 'JB010');
  perform test.refused(format($q$select bugle.report_minutes(%s, %L, array[
    ('default', 'noop', 1, 0, 0, 1, 1, %L, '{1}')::bugle.minute_report])$q$, v_worker, v_nonce, v_none), 'JB001');
end
$$;

rollback;
