-- policies: retry policies, for operators: set one, remove one. Rows can be written by plain SQL too; both are
-- recorded.

create or replace function bugle.describe_policy(p_policy bugle.retry_policies) returns text
language sql stable
return concat_ws(', ', p_policy.kind,
  p_policy.retries || case p_policy.retries when 1 then ' retry' else ' retries' end,
  p_policy.per_day || ' a day', p_policy.days || case p_policy.days when 1 then ' day' else ' days' end,
  'delay ' || p_policy.delay,
  case when p_policy.kind not in ('fixed', 'daily') then
    format('factor %s, max_delay %s', p_policy.factor, p_policy.max_delay) end,
  'jitter ' || p_policy.jitter);
comment on function bugle.describe_policy is 'A retry policy in one line.';

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
begin
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
  insert into bugle.retry_policies as p
  values (v_new.*)
  on conflict (name) do update
  set (kind, retries, delay, factor, max_delay, jitter, per_day, days)
    = (excluded.kind, excluded.retries, excluded.delay, excluded.factor, excluded.max_delay, excluded.jitter,
      excluded.per_day, excluded.days);
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
begin
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
