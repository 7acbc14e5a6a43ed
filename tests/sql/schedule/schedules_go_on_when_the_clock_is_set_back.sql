begin;

do $$
declare
  v_keeper constant bigint := test.register();
  v_now constant timestamptz := now();
  v_fired bigint;
begin
  insert into bugle.schedules (name, every, command) values ('often', '1 minute', 'noop'),
    ('hourly', '1 hour', 'noop'), ('daily', '24 hours', 'noop');
  insert into bugle.schedules (name, cron, command) values ('cron often', '* * * * *', 'noop'),
    ('cron hourly', '@hourly', 'noop'),
    ('cron daily', to_char(v_now at time zone 'UTC' + interval '1 minute', 'FMMI FMHH24 * * *'), 'noop');
  -- as they were an hour from now by the clock that runs ahead, having fired what was due in that hour
  update bugle.schedules s set created_at = v_now - interval '10 days';
  update bugle.schedules s set next_at = bugle.slot_after(s, v_now);
  for v_minute in 1..60 loop
    perform bugle.fire_schedules(v_now + make_interval(mins => v_minute));
  end loop;
  select count(*) into v_fired from bugle.schedule_runs;
  perform test.equal((select count(*) from bugle.schedule_runs r where r.schedule = 'often'), 60::bigint,
    'fired every minute');
  perform test.equal((select count(*) from bugle.schedule_runs r where r.schedule = 'cron daily'), 1::bigint,
    'fired once');
  update bugle.keeping set ticked_at = v_now + interval '1 hour';

  perform bugle.run_maintenance(v_keeper, false);

  perform test.equal((select count(*) from bugle.schedule_runs), v_fired, 'nothing is fired for it');
  perform test.equal((select s.next_at <= v_now + interval '1 minute 1 second' from bugle.schedules s
    where s.name = 'often'), true, 'an interval goes on');
  perform test.equal((select s.next_at <= v_now + interval '1 hour 1 second' from bugle.schedules s
    where s.name = 'hourly'), true, 'a longer one too');
  perform test.equal((select s.next_at >= v_now + interval '23 hours' from bugle.schedules s where s.name = 'daily'),
    true, 'never before its time has passed');
  perform test.equal((select bool_and(not exists (
      select from bugle.schedule_runs r where r.schedule = s.name and r.slot = s.next_at)) from bugle.schedules s),
        true,
    'each goes on with a slot that has not been fired');

  -- the hour comes again
  for v_minute in 1..60 loop
    perform bugle.fire_schedules(v_now + make_interval(mins => v_minute, secs => 1));
  end loop;
  perform test.equal((select count(*) from bugle.schedule_runs r where r.schedule = 'often'), 120::bigint,
    'every minute of it');
  perform test.equal((select count(*) from bugle.schedule_runs r where r.schedule = 'cron daily'), 1::bigint,
    'a daily job does not run twice');
  assert (select count(*) from bugle.schedule_runs r where r.schedule = 'daily') <= 1, 'neither does one of 24 hours';
  perform test.equal((select count(*) from bugle.schedule_runs r where r.schedule = 'cron often'
    and r.slot <= v_now + interval '1 hour'), 60::bigint, 'a time of day is fired once');
  -- and is over
  perform bugle.fire_schedules(v_now + interval '1 hour 1 minute');
  perform test.equal((select count(*) from bugle.schedule_runs r where r.schedule = 'cron often'
    and r.slot > v_now + interval '1 hour'), 1::bigint, 'then it goes on');
  perform test.equal((select count(*) from bugle.jobs j),
    (select count(*) from bugle.schedule_runs r where r.job is not null), 'one job for each');
end
$$;

rollback;
