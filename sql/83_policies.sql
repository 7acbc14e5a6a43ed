-- policies: retry policies, for operators: set one, remove one. Rows can be written by plain SQL too; both are
-- recorded.

create or replace function bugle.describe_policy(p_policy bugle.retry_policies) returns text
language sql stable
return concat_ws(', ', p_policy.kind, p_policy.retries || ' retries', p_policy.per_day || ' a day',
  p_policy.days || ' days', 'delay ' || p_policy.delay,
  case when p_policy.kind not in ('fixed', 'daily') then
    format('factor %s, max_delay %s', p_policy.factor, p_policy.max_delay) end,
  'jitter ' || p_policy.jitter);
comment on function bugle.describe_policy is 'A retry policy in one line.';

-- As for schedules, the functions name themselves in a setting.
create or replace function bugle.record_policy() returns trigger
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_verb constant text := coalesce(nullif(current_setting('bugle.verb', true), ''),
    case tg_op when 'DELETE' then 'remove_policy' else 'set_policy' end);
  v_name text;
  v_before text;
  v_after text := 'removed';
begin
  if tg_op <> 'INSERT' then
    v_name := old.name;
    v_before := bugle.describe_policy(old);
  end if;
  if tg_op <> 'DELETE' then
    v_name := new.name;
    v_after := bugle.describe_policy(new);
  end if;
  -- what a new database has is nobody's change
  if v_verb <> 'install' then
    perform bugle.record_change(v_verb, null, v_before, v_after, nullif(current_setting('bugle.note', true), ''),
      p_policy => v_name);
  end if;
  return null;
end
$$;
comment on function bugle.record_policy is 'Trigger: record who added, changed or removed a retry policy.';

select bugle.keep_trigger('bugle.retry_policies', 'record_policy', $$
  after insert or update or delete on bugle.retry_policies for each row execute function bugle.record_policy()$$);

-- The constraints decide; here each gets a sentence.
create or replace function bugle.refuse_policy(p_policy bugle.retry_policies, p_constraint text) returns void
language plpgsql
as $$
begin
  perform bugle.refuse('JB001', format('the retry policy %s: %s', coalesce(bugle.quoted(p_policy.name), 'null'),
      c.message), c.hint)
  from (values
    ('name_is_short', '"name" must have 1 to 100 characters', 'Jobs and commands name it in retry_policy.'),
    ('kind_is_known', format('"kind" must be one of the known kinds, not %s', bugle.quoted(p_policy.kind)),
      'One of: fixed, exponential, fixed_then_exponential, endless, daily.'),
    ('retries_are_counted_unless_endless_or_daily',
      format('"retries" cannot be %s with kind %s', coalesce(p_policy.retries::text, 'null'), p_policy.kind),
      'endless ones have no end, and daily ones have per_day and days; the others need a number.'),
    ('retries_are_not_negative', format('"retries" must not be negative: %s', p_policy.retries),
      '0: one attempt and no retry.'),
    ('delay_is_not_negative', format('"delay" must be between 0 and 10 years, not %s', p_policy.delay),
      'For example interval ''30 seconds''.'),
    ('max_delay_is_not_negative', format('"max_delay" must be between 0 and 10 years, not %s', p_policy.max_delay),
      'For example interval ''1 hour''.'),
    ('factor_grows', format('"factor" must be between 1 and 1000, not %s', p_policy.factor),
      '2 doubles the delay each time.'),
    ('jitter_is_a_share', format('"jitter" must be between 0 and 1, not %s', p_policy.jitter),
      '0.1 spreads each delay by ten percent.'),
    ('daily_policies_count_days', format('"per_day" and "days" are not for kind %s', p_policy.kind),
      'They are for kind daily, which needs per_day.'),
    ('daily_counts_are_sane', format('"per_day" (%s) must be between 1 and 10000, "days" (%s) between 1 and 3650',
        p_policy.per_day, coalesce(p_policy.days::text, 'null')),
      'For example p_per_day => 3, p_days => 7.')) c (name, message, hint)
  where c.name = p_constraint;
end
$$;
comment on function bugle.refuse_policy is 'Reject a retry policy that violates a constraint, and say what to do.';

create or replace function bugle.set_policy(
  p_name text, p_kind text default null, p_retries integer default null, p_delay interval default null,
  p_factor double precision default null, p_max_delay interval default null, p_jitter double precision default null,
  p_per_day integer default null, p_days integer default null, p_note text default null)
returns text
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_old bugle.retry_policies;
  v_new bugle.retry_policies;
  v_constraint text;
begin
  if p_name is null then
    perform bugle.refuse_policy(v_new, 'name_is_short');
  end if;
  select p.* into v_old from bugle.retry_policies p where p.name = p_name for update;
  v_new.name := p_name;
  v_new.kind := coalesce(p_kind, v_old.kind, 'exponential');
  v_new.retries := coalesce(p_retries,
    case when v_new.kind not in ('endless', 'daily') then coalesce(v_old.retries, 15) end);
  v_new.delay := coalesce(p_delay, v_old.delay, '5 seconds');
  v_new.factor := coalesce(p_factor, v_old.factor, 2);
  v_new.max_delay := coalesce(p_max_delay, v_old.max_delay, '1 hour');
  v_new.jitter := coalesce(p_jitter, v_old.jitter, 0.1);
  v_new.per_day := coalesce(p_per_day, case when v_new.kind = 'daily' then coalesce(v_old.per_day, 1) end);
  v_new.days := coalesce(p_days, case when v_new.kind = 'daily' then v_old.days end);
  perform bugle.set_verb('set_policy', p_note);
  begin
    insert into bugle.retry_policies as p (name, kind, retries, delay, factor, max_delay, jitter, per_day, days)
    values (v_new.name, v_new.kind, v_new.retries, v_new.delay, v_new.factor, v_new.max_delay, v_new.jitter,
      v_new.per_day, v_new.days)
    on conflict (name) do update
    set (kind, retries, delay, factor, max_delay, jitter, per_day, days)
      = (excluded.kind, excluded.retries, excluded.delay, excluded.factor, excluded.max_delay, excluded.jitter,
        excluded.per_day, excluded.days);
  exception when check_violation then
    get stacked diagnostics v_constraint = constraint_name;
    perform bugle.refuse_policy(v_new, v_constraint);
    raise;
  end;
  perform bugle.set_verb('', '');
  return bugle.describe_policy(v_new);
end
$$;
comment on function bugle.set_policy is
  'Add a retry policy, or change one: what is left out stays, or has its default. Jobs that use it follow at once. '
  'Returns it in one line.';

create or replace function bugle.remove_policy(p_name text, p_note text default null) returns void
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_command text;
begin
  select c.name into v_command
  from bugle.commands c
  where p_name in (c.retry_policy, c.step_retry_policy)
  order by c.name
  limit 1;
  if found then
    perform bugle.refuse('JB031', format('the retry policy %s is used by the command %s', bugle.quoted(p_name),
        bugle.quoted(v_command)),
      'Change its row in bugle.commands first, or change the policy instead.');
  end if;
  perform bugle.set_verb('remove_policy', p_note);
  delete from bugle.retry_policies p where p.name = p_name;
  if not found then
    perform bugle.refuse('JB030', format('there is no retry policy %s', coalesce(bugle.quoted(p_name), 'null')),
      'See bugle.retry_policies.');
  end if;
  perform bugle.set_verb('', '');
end
$$;
comment on function bugle.remove_policy is 'Remove a retry policy that nothing uses.';
