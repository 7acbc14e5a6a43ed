begin;

set local role bugle_operator;
insert into bugle.schedules (name, every, command) values ('often', '1 minute', 'noop');
update bugle.schedules set every = '2 minutes', queue = 'q' where name = 'often';
select bugle.pause_schedule('often', 'too often');
select bugle.resume_schedule('often');
delete from bugle.schedules where name = 'often';
reset role;

do $$
begin
  perform test.equal((select string_agg(concat_ws(' ', c.verb, c.from_state, c.to_state, c.note), '; ' order by c.id)
    from bugle.changes c where c.schedule = 'often'),
    'insert_schedule; update_schedule changed: every, next_at, queue; pause_schedule paused too often; resume_schedule '
      'paused; delete_schedule removed',
    'regardless of who makes them and how');
end
$$;

rollback;
