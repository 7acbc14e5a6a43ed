begin;

insert into bugle.schedules (name, cron, command, retry_delay) values ('s', '@daily', 'noop', '2 minutes');

do $$
begin
  perform test.equal((test.job(bugle.run_schedule_now('s'))).retry_delay, interval '2 minutes', 'as set');

  update bugle.schedules set retry_delay = '3 minutes';
  perform test.equal((test.job(bugle.run_schedule_now('s'))).retry_delay, interval '3 minutes', 'as changed');
end
$$;

select test.refused('update bugle.schedules set retry_delay = ''-1 second''', 'JB005',
  'column "retry_delay" must be between 0 and 10 years, not ''-00:00:01''');

rollback;
