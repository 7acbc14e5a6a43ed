begin;

select bugle.enqueue('noop', p_queue => 'by job'), test.register('{noop}', '{by worker}');
insert into bugle.queues (name) values ('by row');
insert into bugle.schedules (name, every, command, queue) values ('hourly', '1 hour', 'noop', 'by schedule');

select bugle.pause_queue(q.name)
from unnest(array['default', 'by job', 'by worker', 'by row', 'by schedule']) q (name);
select test.equal((select count(*) from bugle.queues q where q.paused_at is not null), 5::bigint,
  'all of these are known');

select test.refused('select bugle.pause_queue(''by jbo'')', 'JB030', 'there is no queue ''by jbo''');
select test.refused('select bugle.pause_queue('' '')', 'JB030', 'there is no queue '' ''');
select test.refused('select bugle.pause_queue(null)', 'JB030', 'there is no queue null');

rollback;
