begin;

create temporary table tried (of_table text, name text, sql text, message text);

-- Each rule, broken by a plain INSERT or UPDATE.
insert into tried
select t.of_table, t.name,
  case t.of_table
    when 'settings' then format('update bugle.settings set (%s) = row(%s)', t.columns, t.given)
    else format('insert into bugle.%s (name, %s) values (%L, %s)', t.of_table, t.columns, 'x', t.given) end,
  t.message
from (values
  ('retry_policies', 'kind_is_known', 'kind', '''odd''', 'the retry policy ''x'': "kind" must be fixed,%, not ''odd'''),
  ('retry_policies', 'retries_are_counted_unless_endless_or_daily', 'kind', '''endless''',
    'the retry policy ''x'': "kind" (''endless'') and "retries" (''15'') must fit: %'),
  ('retry_policies', 'retries_are_not_negative', 'retries', '-1',
    'the retry policy ''x'': "retries" must be 0 or more, not ''-1'''),
  ('retry_policies', 'delay_is_not_negative', 'delay', '''-1 second''',
    'the retry policy ''x'': "delay" must be between 0 and 10 years, not ''-00:00:01'''),
  ('retry_policies', 'max_delay_is_not_negative', 'max_delay', '''11 years''', '%"max_delay" must be%''11 years'''),
  ('retry_policies', 'factor_grows', 'factor', '''NaN''', '%"factor" must be between 1 and 1000, not ''NaN'''),
  ('retry_policies', 'jitter_is_a_share', 'jitter', '2', '%"jitter" must be between 0 and 1, not ''2'''),
  ('retry_policies', 'daily_policies_count_days', 'days', '2',
    '%"kind" (''exponential'') and "per_day" (null) and "days" (''2'') must fit: %'),
  ('retry_policies', 'daily_counts_are_sane', 'kind, retries, per_day', '''daily'', null, 0', '%"per_day" (''0'')%'),
  ('commands', 'queue_is_short', 'queue', ''' ''', 'the command ''x'': "queue" must have 1 to 100%, not '' '''),
  ('commands', 'delay_is_not_negative', 'delay', '''-1 second''', '%"delay" must be%'),
  ('commands', 'unique_for_is_of_a_unique_payload', 'unique_for', '''1 hour''', '%"unique_payload" (''false'')%'),
  ('commands', 'unique_mode_is_known', 'unique_mode', '''merge''', '%keep, replace or move, not ''merge'''),
  ('commands', 'required_keys_are_named', 'required_keys', '''{}''', '%"required_keys" must be a list%, not ''[]'''),
  ('commands', 'on_success_is_short', 'on_success', '''''', '%"on_success" must have%'),
  ('commands', 'on_failure_is_short', 'on_failure', '''''', '%"on_failure" must have%'),
  ('commands', 'on_failure_is_another_command', 'on_failure', '''x''',
    'the command ''x'': "name" (''x'') and "on_failure" (''x'') must differ'),
  ('commands', 'steps_are_named', 'steps', '''{a,null}''', '%"steps" must be a list%, not ''["a", null]'''),
  ('commands', 'deadline_is_positive', 'deadline', '''0''', '%"deadline" must be positive%'),
  ('commands', 'headers_are_an_object', 'headers', '''[]''', '%"headers" must be a JSON object, not ''[]'''),
  ('commands', 'idempotency_ttl_is_positive', 'idempotency_ttl', '''0''', '%"idempotency_ttl" must be positive%'),
  ('commands', 'timeout_is_positive', 'timeout', '''0''', '%"timeout" must be positive, not ''00:00:00'''),
  ('commands', 'max_attempts_is_positive', 'max_attempts', '0', '%"max_attempts" must be at least 1, not ''0'''),
  ('commands', 'max_running_is_positive', 'max_running', '0', '%"max_running" must be at least 1, not ''0'''),
  ('queues', 'max_running_is_positive', 'max_running', '-1', 'the queue ''x'': "max_running" must be at least 1%'),
  ('queues', 'max_running_per_key_is_positive', 'max_running_per_key', '0', '%"max_running_per_key" must be%'),
  ('queues', 'max_starts_is_positive', 'max_starts, starts_period', '0, ''1 s''', '%"max_starts" must be%'),
  ('queues', 'max_starts_per_key_is_positive', 'max_starts_per_key, starts_per_key_period', '0, ''1 s''',
    '%"max_starts_per_key" must be%'),
  ('queues', 'starts_are_counted_in_a_period', 'max_starts', '9',
    'the queue ''x'': "max_starts" (''9'') and "starts_period" (null) must be set together'),
  ('queues', 'starts_per_key_are_counted_in_a_period', 'starts_per_key_period', '''1 minute''', '%set together'),
  ('queues', 'starts_period_is_sane', 'max_starts, starts_period', '1, ''0''', '%between 10 milliseconds%'),
  ('queues', 'starts_per_key_period_is_sane', 'max_starts_per_key, starts_per_key_period', '1, ''0''', '%between 10%'),
  ('queues', 'order_on_retry_is_known', 'order_on_retry', '''skip''', '%must be block or pass, not ''skip'''),
  ('schedules', 'a_schedule_has_a_cron_or_an_interval', 'command, cron, every', '''noop'', ''@daily'', ''1 hour''',
    'the schedule ''x'': "cron" (''@daily'') and "every" (''01:00:00'') must fit: one of them%'),
  ('schedules', 'every_is_a_fixed_time', 'command, every', '''noop'', ''1 month''',
    '%"every" must be given without months%'),
  ('schedules', 'every_is_sane', 'command, every', '''noop'', ''0''', '%"every" must be between 1 second%'),
  ('schedules', 'misfire_is_known', 'command, every, misfire', '''noop'', ''1 hour'', ''hope''',
    '%"misfire" must be skip,%'),
  ('schedules', 'catch_up_limit_is_sane', 'command, every, catch_up_limit', '''noop'', ''1 hour'', 0',
    '%"catch_up_limit" must be between 1 and 1000, not ''0'''),
  ('schedules', 'overlap_is_known', 'command, every, overlap', '''noop'', ''1 hour'', ''queue''',
    '%"overlap" must be allow%'),
  ('schedules', 'a_schedule_ends_after_it_starts', 'command, every, starts_at', '''noop'', ''1 hour'', ''infinity''',
    '%"starts_at" (''infinity'') and "ends_at" (null) must be finite%'),
  ('schedules', 'headers_are_an_object', 'command, every, headers', '''noop'', ''1 hour'', ''[]''',
    '%"headers" must be%'),
  ('settings', 'there_is_one_row', 'only_row', 'false', 'bugle.settings: "only_row" must be true, not ''false'''),
  ('settings', 'payload_limit_is_sane', 'max_payload_bytes', '10', '%"max_payload_bytes" must be between 8192 and%'),
  ('settings', 'ended_days_are_sane', 'ended_days', '-1', '%"ended_days" must be between%, not ''-1'''),
  ('settings', 'failed_days_are_sane', 'failed_days', '3651', '%"failed_days" must be between%'),
  ('settings', 'stats_days_are_sane', 'stats_days', '-1', '%"stats_days" must be between%'),
  ('settings', 'crash_limit_is_positive', 'crash_limit', '0', '%"crash_limit" must be at least 1%'),
  ('settings', 'lost_grace_is_sane', 'lost_grace', '''2 hours''', '%"lost_grace" must be between 0 and 1 hour, not%'),
  ('settings', 'lease_is_sane', 'lease', '''1 s''', '%"lease" must be between 2 seconds and 1 day, not ''00:00:01'''),
  ('settings', 'step_timeout_is_positive', 'step_timeout', '''0''', '%"step_timeout" must be positive%'),
  ('settings', 'chain_timeout_is_positive', 'chain_timeout', '''0''', '%"chain_timeout" must be positive%'),
  ('settings', 'default_deadline_is_positive', 'default_deadline', '''0''', '%"default_deadline" must be%'),
  ('settings', 'default_idempotency_ttl_is_positive', 'default_idempotency_ttl', '''0''', '%_ttl" must be positive%'),
  ('settings', 'default_timeout_is_positive', 'default_timeout', '''0''', '%"default_timeout" must be positive%'),
  ('settings', 'unserved_limit_is_positive', 'unserved_limit', '''0''', '%"unserved_limit" must be positive%'),
  ('settings', 'redacted_paths_are_paths', 'redacted_paths', '''{a..b}''', '%a list of paths%, not ''["a..b"]''')
  ) t (of_table, name, columns, given, message);
insert into tried
select t.name, 'name_is_short', case t.name
    when 'schedules' then 'insert into bugle.schedules (name, command, every) values ('''', ''noop'', ''1 hour'')'
    else format('insert into bugle.%s (name) values ('''')', t.name) end,
  '%"name" must have 1 to %00 characters%, not '''''
from unnest(array['retry_policies', 'commands', 'queues', 'schedules']) t (name);

select test.refused(t.sql, case t.of_table when 'schedules' then 'JB005' else 'JB001' end, t.message) from tried t;

-- every constraint is in this list, and has its words
select test.equal(
  array(select concat_ws(' ', t.of_table, t.name) from tried t order by 1),
  array(
    select concat_ws(' ', c.relname, k.conname)
    from pg_constraint k
      join pg_class c on c.oid = k.conrelid
    where c.relnamespace = 'bugle'::regnamespace
      and c.relname in ('settings', 'queues', 'commands', 'retry_policies', 'schedules')
      and k.contype = 'c'
    order by 1), 'constraints');
select test.equal(
  array(select concat_ws(' ', r.of_table, r.name) from bugle.rules() r order by 1),
  array(select concat_ws(' ', t.of_table, t.name) from tried t order by 1), 'rules');

-- nulls, and the names of policies
select test.refused(n.sql, n.code, n.message)
from (values
  ('update bugle.settings set lease = null', 'JB001', 'bugle.settings: "lease" must not be null'),
  ('insert into bugle.queues (name) values (null)', 'JB001', 'the queue null: "name" must not be null'),
  ('insert into bugle.commands (name, unique_payload) values (''x'', null)', 'JB001',
    'the command ''x'': "unique_payload" must not be null'),
  ('update bugle.retry_policies set jitter = null', 'JB001', 'the retry policy %: "jitter" must not be null'),
  ('insert into bugle.schedules (name, every, command, misfire) values (''x'', ''1 hour'', ''noop'', null)', 'JB005',
    'the schedule ''x'': "misfire" must not be null'),
  ('insert into bugle.schedules (name, every, command, queue) values (''x'', ''1 hour'', ''noop'', null)', 'JB005',
    'the schedule ''x'': "queue" must not be null'),
  ('insert into bugle.schedules (name, every, command) values (null, ''1 hour'', ''noop'')', 'JB005', '%"name"%'),
  ('insert into bugle.commands (name, retry_policy) values (''x'', ''often'')', 'JB004',
    'column "retry_policy" is not the name of a policy: ''often'''),
  ('insert into bugle.commands (name, step_retry_policy) values (''x'', ''often'')', 'JB004',
    'column "step_retry_policy" is not the name of a policy: ''often''')) n (sql, code, message);

-- and the context names the functions, not what they are made of: psql prints all of it
create function pg_temp.context_of(p_sql text) returns text
language plpgsql
as $$
declare
  v_context text;
begin
  execute p_sql;
  return null;
exception when others then
  get stacked diagnostics v_context = pg_exception_context;
  return v_context;
end
$$;
select test.equal(c.lines <= 8 and c.longest <= 200, true, format('the context of %s is short: %s', c.sql, c.context))
from (
  select t.sql, r.context, cardinality(string_to_array(r.context, e'\n')) as lines,
    (select max(length(l)) from unnest(string_to_array(replace(r.context, t.sql, ''), e'\n')) l) as longest
  from (
      select d.sql from tried d
      union all
      select 'update bugle.settings set lease = null'
      union all
      select 'insert into bugle.commands (name, retry_policy) values (''x'', ''often'')') t
    cross join lateral pg_temp.context_of(t.sql) r (context)) c;

-- one bad row of several, and what was there before is as it was
select test.refused($$insert into bugle.queues (name, max_running) values ('a', 1), ('b', 0)$$, 'JB001',
  'the queue ''b'': "max_running" must be at least 1, not ''0''');
select test.equal(count(*), 0::bigint, 'queues') from bugle.queues q where q.name in ('a', 'b', 'x');

-- a constraint of the owner's own is Postgres' to enforce
alter table bugle.queues add constraint house_rule check (name <> 'nope');
select test.refused($$insert into bugle.queues (name) values ('nope')$$, '23514', '%house_rule%');

-- by an operator, too
do $$
begin
  if to_regrole('bugle_operator') is not null then
    set local role bugle_operator;
    perform test.refused($q$insert into bugle.retry_policies (name, factor) values ('mine', 0)$q$, 'JB001',
      'the retry policy ''mine'': "factor" must be between 1 and 1000, not ''0''');
    reset role;
  end if;
end
$$;

rollback;
