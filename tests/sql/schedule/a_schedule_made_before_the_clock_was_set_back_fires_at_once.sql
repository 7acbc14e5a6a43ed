begin;

do $$
declare
  v_keeper constant bigint := test.register();
begin
  insert into bugle.schedules (name, every, command) values ('every', '10 seconds', 'noop');
  insert into bugle.schedules (name, cron, command) values ('cron', '*/10 * * * * *', 'noop');
  insert into bugle.schedules (name, every, command, starts_at)
    values ('later', '10 seconds', 'noop', now() + interval '2 hours');
  perform bugle.run_maintenance(v_keeper, false);
  perform test.clock_steps_back('1 hour');

  perform bugle.run_maintenance(v_keeper, false);

  perform test.equal((select bool_and(s.next_at < clock_timestamp() + interval '21 seconds') from bugle.schedules s
    where s.name <> 'later'), true, 'soon');
  perform test.equal((select s.next_at from bugle.schedules s where s.name = 'later'), now() + interval '2 hours',
    'not before its beginning');
end
$$;

rollback;
