begin;

do $$
declare
  v_keeper constant bigint := test.register();
  v_worker constant bigint := test.register();
  v_again double precision;
  v_lease interval;
  v_before timestamptz;
begin
  foreach v_lease in array array[interval '30 seconds', '6 seconds', '2 seconds'] loop
    update bugle.settings set lease = v_lease;
    update bugle.registrations r set seen_at = clock_timestamp() - v_lease / 4 where r.id = v_worker;
    v_before := clock_timestamp();

    select h.again_seconds into v_again from bugle.heartbeat(v_worker, test.nonce(v_worker), '{}', false) h;

    assert v_again <= extract(epoch from v_lease) / 3 + 0.001,
      format('a lease of %s, and the next beat in %s s', v_lease, v_again);
    assert (select r.seen_at > v_before from bugle.registrations r where r.id = v_worker),
      format('a lease of %s, and a beat was not noted', v_lease);
  end loop;
end
$$;

rollback;
