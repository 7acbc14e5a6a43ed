begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_slots integer;
begin
  perform bugle.enqueue('noop');
  foreach v_slots in array array[null, 0, -1] loop
    perform test.equal((select count(*) from test.claim(v_worker, v_slots)), 0::bigint,
      format('claimed with %s slots', v_slots));
  end loop;
end
$$;

rollback;
