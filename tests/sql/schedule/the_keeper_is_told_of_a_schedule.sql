begin;

do $$
begin
  insert into bugle.schedules (name, every, command) values ('s', '3 hours', 'noop');
  assert bugle.next_due_seconds() between 10700 and 10800, 'new';
  update bugle.schedules set every = '1 hour';
  assert bugle.next_due_seconds() between 3500 and 3600, 'changed';
  update bugle.schedules set payload = '{"a": 1}';
  assert bugle.next_due_seconds() between 3500 and 3600, 'a change of something else does not move it';

  update bugle.schedules set next_at = now();
  perform test.equal((select p.promoted from bugle.promote() p), 0, 'promotion fires it');
  perform test.equal((select count(*) from bugle.jobs j where j.state = 'ready'), 1::bigint, 'a job');
end
$$;

rollback;
