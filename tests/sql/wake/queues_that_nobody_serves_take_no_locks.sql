begin;
do $$
declare
  v_before bigint;
begin
  perform test.register('{noop}', '{default}');
  insert into bugle.jobs (command, queue) select 'noop', 'unserved ' || i from generate_series(1, 2000) i;
  v_before := (select count(*) from pg_locks l where l.pid = pg_backend_pid() and l.locktype = 'advisory');
  perform bugle.check_bells();
  perform test.equal(
    (select count(*) from pg_locks l where l.pid = pg_backend_pid() and l.locktype = 'advisory'), v_before,
      'locks taken');
end
$$;
rollback;
