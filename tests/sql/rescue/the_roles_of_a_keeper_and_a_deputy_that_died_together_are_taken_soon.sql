begin;

do $$
declare
  v_keeper constant bigint := test.register();
  v_fleet bigint[] := array[test.register(), test.register()];
begin
  assert bugle.ask_again_seconds() <= 1, 'a fleet of three asks every second';

  for v_more in 4 .. 20 loop
    v_fleet := v_fleet || test.register();
  end loop;
  perform test.equal(bugle.ask_again_seconds(), 5::double precision, 'a fleet of twenty, each');

  for v_more in 21 .. 100 loop
    v_fleet := v_fleet || test.register();
  end loop;
  perform test.equal(bugle.ask_again_seconds(), 10::double precision, 'a large fleet, each');

  perform bugle.detach(w.id, test.nonce(w.id)) from unnest(v_fleet) w (id);
  perform test.equal(bugle.ask_again_seconds(), 1::double precision, 'a worker that has signed off does not count');
end
$$;

rollback;
