-- rules: what the rows of bugle.settings, queues, commands, retry_policies and schedules must be. Also for rows that
-- are written by hand.
--
-- The constraints decide. They are evaluated before the row is stored, so that a row that violates one is rejected with
-- a message and a hint; Postgres would only name the constraint. These tables are rarely written, so it may cost a
-- millisecond.

-- "must …" completes the rule.
create or replace function bugle.rules() returns table (of_table text, name text, rule text, hint text)
language sql immutable parallel safe
as $$
  values
    ('retry_policies', 'name_is_short', 'have 1 to 100 characters', 'Jobs and commands name it in retry_policy.'),
    ('retry_policies', 'kind_is_known', 'be fixed, exponential, fixed_then_exponential, endless or daily',
      'Leave it out for exponential.'),
    ('retry_policies', 'retries_are_counted_unless_endless_or_daily',
      'fit: endless and daily have no number of retries, the others need one',
      'Set retries to null for endless and daily; daily has per_day and days instead.'),
    ('retry_policies', 'retries_are_not_negative', 'be 0 or more', '0: one attempt and no retry.'),
    ('retry_policies', 'delay_is_not_negative', 'be between 0 and 10 years', 'For example interval ''30 seconds''.'),
    ('retry_policies', 'max_delay_is_not_negative', 'be between 0 and 10 years', 'For example interval ''1 hour''.'),
    ('retry_policies', 'factor_grows', 'be between 1 and 1000', '2 doubles the delay each time.'),
    ('retry_policies', 'jitter_is_a_share', 'be between 0 and 1', '0.1 spreads each delay by ten percent.'),
    ('retry_policies', 'daily_policies_count_days',
      'fit: daily needs per_day, the others have neither per_day nor days', 'For example 3 a day for 7 days.'),
    ('retry_policies', 'daily_counts_are_sane', 'be from 1 to 10000, and from 1 to 3650',
      'For example 3 a day for 7 days.'),

    ('commands', 'name_is_short', 'have 1 to 200 characters that are not all blank',
      'It is the command that jobs name.'),
    ('commands', 'queue_is_short', 'have 1 to 100 characters that are not all blank',
      'Leave it out if its jobs name their queue.'),
    ('commands', 'delay_is_not_negative', 'be between 0 and 10 years', 'For example interval ''5 minutes''.'),
    ('commands', 'unique_for_is_of_a_unique_payload',
      'fit: unique_for is positive, at most 10 years, and requires unique_payload',
      'Also set unique_payload, or leave unique_for out.'),
    ('commands', 'unique_mode_is_known', 'be keep, replace or move', 'Leave it out for keep.'),
    ('commands', 'required_keys_are_named', 'be a list of at least one key, without null',
      'For example array[''order'', ''customer'']. Leave it out if no key is required.'),
    ('commands', 'on_success_is_short', 'have 1 to 200 characters', 'Name the command that follows, or leave it out.'),
    ('commands', 'on_failure_is_short', 'have 1 to 200 characters', 'Name the command that follows, or leave it out.'),
    ('commands', 'on_failure_is_another_command', 'differ',
      'A command that follows its own failure would never end.'),
    ('commands', 'steps_are_named', 'be a list of 1 to 100 commands, without null',
      'For example array[''fetch'', ''resize'', ''upload'']. Leave it out if its jobs are not chains.'),
    ('commands', 'deadline_is_positive', 'be positive and at most 10 years',
      'Leave it out if its jobs may start at any time.'),
    ('commands', 'headers_are_an_object', 'be a JSON object', 'For example {"team": "billing"}.'),
    ('commands', 'idempotency_ttl_is_positive', 'be positive and at most 10 years',
      'It is how long the key is remembered, for example interval ''24 hours''.'),
    ('commands', 'timeout_is_positive', 'be positive', 'It limits one attempt, for example interval ''5 minutes''.'),
    ('commands', 'max_attempts_is_positive', 'be at least 1',
      'It is the number of retries plus one; leave it out to use the retry policy''s.'),
    ('commands', 'max_running_is_positive', 'be at least 1',
      'Null, or 0 in bugle.set_command_limit, removes the limit. bugle.pause_queue stops a queue.'),

    ('queues', 'name_is_short', 'have 1 to 100 characters that are not all blank', 'It is the queue that jobs name.'),
    ('queues', 'starts_are_counted_in_a_period', 'be set together',
      'For example max_starts = 100, starts_period = ''1 minute''. Null in both removes the limit.'),
    ('queues', 'starts_per_key_are_counted_in_a_period', 'be set together',
      'For example max_starts_per_key = 100, starts_per_key_period = ''1 minute''. Null in both removes the limit.'),
    ('queues', 'starts_period_is_sane', 'be between 10 milliseconds and 366 days',
      'For example interval ''1 minute''.'),
    ('queues', 'starts_per_key_period_is_sane', 'be between 10 milliseconds and 366 days',
      'For example interval ''1 minute''.'),
    ('queues', 'order_on_retry_is_known', 'be block or pass',
      'block: the other jobs of an order key wait behind one that is retried; pass: they do not.'),

    ('schedules', 'name_is_short', 'have 1 to 100 characters that are not all blank', 'It identifies the schedule.'),
    ('schedules', 'a_schedule_has_a_cron_or_an_interval', 'fit: one of them is set, and the other is null',
      'For example cron = ''0 9 * * MON-FRI'', or every = ''10 minutes''.'),
    ('schedules', 'every_is_a_fixed_time', 'be given without months and years, which differ in length',
      'Use a cron expression, for example @monthly.'),
    ('schedules', 'every_is_sane', 'be between 1 second and 3650 days', 'For example interval ''10 minutes''.'),
    ('schedules', 'misfire_is_known', 'be skip, run_once or catch_up', 'It decides what happens to missed slots.'),
    ('schedules', 'catch_up_limit_is_sane', 'be between 1 and 1000',
      'With misfire = ''catch_up'', at most this many missed slots are fired.'),
    ('schedules', 'overlap_is_known', 'be allow or skip',
      'It decides whether a slot fires while an earlier job has not ended.'),
    ('schedules', 'a_schedule_ends_after_it_starts', 'be finite and in this order',
      'Leave both out for a schedule without start and end.'),
    ('schedules', 'headers_are_an_object', 'be a JSON object', 'For example {"team": "billing"}.'),

    ('settings', 'there_is_one_row', 'be true', 'There is one row. Change it with UPDATE.'),
    ('settings', 'payload_limit_is_sane', 'be between 8192 and 134217728', '1048576 is 1 MiB.'),
    ('settings', 'ended_days_are_sane', 'be between 0 and 3650',
      'It is how long completed and cancelled jobs are kept.'),
    ('settings', 'failed_days_are_sane', 'be between 0 and 3650', 'It is how long failed jobs are kept.'),
    ('settings', 'stats_days_are_sane', 'be between 0 and 3650', 'It is how long bugle.minutes are kept.'),
    ('settings', 'crash_limit_is_positive', 'be at least 1', 'A job whose worker was lost this many times fails.'),
    ('settings', 'lost_grace_is_sane', 'be between 0 and 1 hour', 'For example interval ''2 seconds''.'),
    ('settings', 'lease_is_sane', 'be between 2 seconds and 1 day', 'For example interval ''30 seconds''.'),
    ('settings', 'step_timeout_is_positive', 'be positive and at most 10 years', 'For example interval ''5 minutes''.'),
    ('settings', 'chain_timeout_is_positive', 'be positive and at most 10 years',
      'For example interval ''30 minutes''.'),
    ('settings', 'default_deadline_is_positive', 'be positive and at most 10 years',
      'Null: jobs may start at any time.'),
    ('settings', 'default_idempotency_ttl_is_positive', 'be positive and at most 10 years',
      'For example interval ''24 hours''.'),
    ('settings', 'default_timeout_is_positive', 'be positive and at most 10 years', 'Null: no limit.'),
    ('settings', 'unserved_limit_is_positive', 'be positive and at most 10 years',
      'Null: jobs wait for a worker indefinitely.'),
    ('settings', 'redacted_paths_are_paths', 'be a list of paths: keys separated by dots, the last of which is not **',
      'For example array[''card.number'', ''customers.*.phone'', ''**.password''].')
  union all
  select 'queues', l.name || '_is_positive', 'be at least 1',
    'Null, or 0 in bugle.set_limits, removes the limit. bugle.pause_queue stops a queue.'
  from unnest(array['max_running', 'max_running_per_key', 'max_starts', 'max_starts_per_key']) l (name)
$$;
comment on function bugle.rules is
  'What each constraint of settings, queues, commands, retry policies and schedules requires, in words, with a hint.';

-- A row as errors name it, and their code. What is said is put together before: an expression that fails is repeated in
-- the context of the error.
create or replace function bugle.refuse_row(
  p_table text, p_values jsonb, p_columns text[], p_rule text, p_hint text) returns boolean
language plpgsql
as $$
declare
  v_code constant text := case p_table when 'schedules' then 'JB005' else 'JB001' end;
  v_kind constant text := case p_table when 'retry_policies' then 'retry policy' else rtrim(p_table, 's') end;
  v_row constant text := case p_table
    when 'settings' then 'bugle.settings'
    else format('the %s %s', v_kind, coalesce(bugle.quoted(p_values ->> 'name'), 'null')) end;
  v_columns text;
  v_message text;
begin
  if cardinality(p_columns) = 1 then
    v_message := format('%s: "%s" must %s%s', v_row, p_columns[1], p_rule,
      ', not ' || bugle.quoted(p_values ->> p_columns[1]));
  else
    select string_agg(format('"%s" (%s)', c.name, coalesce(bugle.quoted(p_values ->> c.name), 'null')), ' and '
      order by c.place)
    into v_columns
    from unnest(p_columns) with ordinality c (name, place);
    v_message := format('%s: %s must %s', v_row, v_columns, p_rule);
  end if;
  return bugle.refuse(v_code, v_message, p_hint);
end
$$;
comment on function bugle.refuse_row is 'Reject a row of settings, naming it, its columns and their values.';

-- A constraint that is not in bugle.rules, because it was added by hand, is left to Postgres.
create or replace function bugle.check_row() returns trigger
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_values constant jsonb := to_jsonb(new);
  v_check text;
  v_null text;
  v_broken text;
  v_rule text;
  v_hint text;
  v_columns text[];
  v_column text;
  v_policy text;
begin
  select format('select case %s end, case %s else null end from (select ($1).*) r',
      (select string_agg(format('when r.%I is null then %L', a.attname, a.attname), ' ' order by a.attnum)
       from pg_attribute a
       where a.attrelid = tg_relid and a.attnum > 0 and a.attnotnull and a.attgenerated = ''),
      coalesce((
        select string_agg(format('when not (%s) then %L', pg_get_expr(c.conbin, c.conrelid), c.conname), ' '
          order by c.conname)
        from pg_constraint c
          join bugle.rules() s on s.of_table = tg_table_name and s.name = c.conname
        where c.conrelid = tg_relid and c.contype = 'c'), 'when false then null'))
  into v_check;
  execute v_check into v_null, v_broken using new;

  if v_null is not null then
    perform bugle.refuse_row(tg_table_name, v_values, array[v_null], 'not be null',
      'If it has a default, leave it out, or write default instead of null.');
  end if;
  if v_broken is not null then
    select s.rule, s.hint, array(
      select a.attname::text
      from pg_constraint c
        join pg_attribute a on a.attrelid = c.conrelid and a.attnum = any (c.conkey)
      where c.conrelid = tg_relid
        and c.conname = v_broken
      order by a.attnum)
    into v_rule, v_hint, v_columns
    from bugle.rules() s
    where s.of_table = tg_table_name
      and s.name = v_broken;
    perform bugle.refuse_row(tg_table_name, v_values, v_columns, v_rule, v_hint);
  end if;
  if tg_table_name = 'commands' then
    for v_column, v_policy in
      select c.key, c.value
      from jsonb_each_text(v_values) c
      where c.key in ('retry_policy', 'step_retry_policy')
        and c.value is not null
        and not bugle.is_retry_policy(c.value)
    loop
      perform bugle.refuse_policy_name(v_column, v_policy);
    end loop;
  end if;
  return new;
end
$$;
comment on function bugle.check_row is
  'Trigger: reject a row that violates a constraint, with what is wrong and a hint.';

select bugle.keep_trigger(t.name::regclass, 'check_row', format(
  'before insert or update on %s for each row execute function bugle.check_row()', t.name))
from unnest(array['bugle.settings', 'bugle.queues', 'bugle.commands', 'bugle.retry_policies']) t (name);

-- Before bugle.check_schedule, by its name. Only for columns that an operator may set: what firing writes is not
-- checked again.
select bugle.keep_trigger('bugle.schedules', 'check_row', format(
  'before insert or update of %s on bugle.schedules for each row execute function bugle.check_row()',
  array_to_string(bugle.settable_schedule_columns(), ', ')));
