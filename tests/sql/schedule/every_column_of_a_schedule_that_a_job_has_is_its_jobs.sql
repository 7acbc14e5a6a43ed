begin;

-- an operator may set each of them, and every schedule's trigger checks it
select test.equal(array_agg(a.attname::text), null, 'columns of jobs that an operator cannot set in a schedule')
from pg_attribute a
where a.attrelid = 'bugle.schedules'::regclass
  and a.attnum > 0
  and a.attname = any (bugle.settable_columns())
  and a.attname <> all (bugle.settable_schedule_columns());

insert into bugle.schedules (name, cron, command, payload, queue, priority, timeout, max_attempts, retry_policy,
  retry_delay, headers, steps)
values ('s', '@daily', 'import', '{"shop": 7}', 'slow', 3, '1 minute', 2, 'fixed', '2 minutes', '{"team": "x"}',
  '{fetch,convert}');

do $$
declare
  v_schedule constant jsonb := (select to_jsonb(s) from bugle.schedules s);
  v_job constant jsonb := to_jsonb(test.job(bugle.run_schedule_now('s')));
  v_shared constant text[] := array(
    select s.key from jsonb_each(v_schedule) s where s.key = any (bugle.settable_columns()) and s.key <> 'headers');
begin
  perform test.equal(array(select c.name from unnest(v_shared) c (name) where v_schedule -> c.name = 'null'), '{}',
    'columns that this test does not set');
  perform test.equal((select jsonb_object_agg(c.name, v_job -> c.name) from unnest(v_shared) c (name)),
    (select jsonb_object_agg(c.name, v_schedule -> c.name) from unnest(v_shared) c (name)), 'as the schedule has them');
  perform test.equal(v_job -> 'headers' ->> 'team', 'x', 'and its headers');
end
$$;

rollback;
