begin;

insert into bugle.schedules (name, every, command, misfire) values ('s', '1 hour', 'noop', 'catch_up');

do $$
begin
  perform bugle.pause_schedule('s', 'holidays');
  update bugle.schedules set next_at = now() - interval '5 hours';
  perform test.equal(bugle.fire_schedules(), 0, 'paused');
  perform test.equal(bugle.next_due_seconds(), null, 'nothing is due');
  perform bugle.pause_schedule('s'); -- twice is no harm

  perform test.equal(bugle.resume_schedule('s'), now() + interval '1 hour', 'from the next slot on');
  perform test.equal(bugle.fire_schedules(), 0, 'what passed meanwhile is not made up for');
  perform test.equal((select string_agg(format('%s %s %s', c.verb, c.schedule, c.note), ', ' order by c.id)
    from bugle.changes c),
    'insert_schedule s , pause_schedule s holidays, pause_schedule s , resume_schedule s ', 'recorded');
end
$$;
select test.refused('select bugle.resume_schedule(''s'')', 'JB031', '%not paused%');
select test.refused(format('select bugle.%s(''nobody'')', f), 'JB030', '%nobody%')
from unnest(array['pause_schedule', 'resume_schedule', 'run_schedule_now']) f;

rollback;
