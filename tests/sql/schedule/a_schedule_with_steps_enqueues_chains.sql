begin;

insert into bugle.commands (name, steps) values ('import', '{fetch}');
insert into bugle.schedules (name, cron, command, payload, steps)
values ('a', '@daily', 'import', '{"shop": 7}', '{fetch,convert}');
insert into bugle.schedules (name, cron, command) values ('b', '@daily', 'import'), ('c', '@daily', 'noop');
update bugle.schedules set next_at = '2026-01-01 00:00Z';

do $$
begin
  perform test.equal(bugle.fire_schedules('2026-01-01 00:00Z'), 3, 'all fire');
  perform test.equal(
    (select string_agg(format('%s: %s', j.headers ->> 'schedule', coalesce(j.steps::text, 'no chain')),
      '; ' order by j.headers ->> 'schedule') from bugle.jobs j),
    'a: {fetch,convert}; b: {fetch}; c: no chain', 'the steps of the schedule win over the template''s');
  perform test.equal((select count(*) from bugle.chains c where c.steps = '{fetch,convert}'), 1::bigint,
    'workers can find the chain');

  update bugle.schedules set steps = null where name = 'a';
  perform test.equal((select count(*) from bugle.changes c where c.verb = 'update_schedule'
    and c.note = 'changed: steps'), 1::bigint, 'a change is recorded');
end
$$;

select test.refused(format('insert into bugle.schedules (name, cron, command, payload, steps) values (''s'', '
  '''@daily'', ''x'', %L, %L)', e.payload, e.steps),
  'JB005', e.message)
from (values
  ('{}', '{}', 'column "steps" must be a list of 1 to 100 commands, not 0'),
  ('{}', '{fetch,null}', 'column "steps" must have commands of 1 to 200 characters, not null'),
  ('[1]', '{fetch}', 'column "payload" of a chain must be a JSON object, not array')) e (payload, steps, message);

rollback;
