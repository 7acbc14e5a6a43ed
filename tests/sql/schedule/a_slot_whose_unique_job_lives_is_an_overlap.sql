begin;

insert into bugle.commands (name, unique_payload) values ('noop', true);
insert into bugle.schedules (name, every, command) values ('often', '1 minute', 'noop');

do $$
begin
  perform bugle.enqueue('noop');
  update bugle.schedules s set next_at = now() where s.name = 'often';
  perform test.equal(bugle.fire_schedules(), 0, 'no second job');
  perform test.equal((select concat_ws(' ', r.job, r.skipped) from bugle.schedule_runs r), 'overlap',
    'and the slot says why');
  perform test.equal((select s.last_error from bugle.schedules s), null::text, 'it is no error');
  perform test.equal((select s.next_at > now() from bugle.schedules s), true, 'the next one is awaited');
end
$$;

rollback;
