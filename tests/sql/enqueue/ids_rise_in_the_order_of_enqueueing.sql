begin;

do $$
declare
  v_ids constant bigint[] := array[bugle.enqueue('noop'), bugle.enqueue('noop'),
    bugle.enqueue('noop', p_run_at => now() + interval '1 day')];
begin
  assert v_ids[1] < v_ids[2] and v_ids[2] < v_ids[3], 'ids rise';
end
$$;

rollback;
