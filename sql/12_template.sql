-- template: what a row of bugle.commands, or bugle.settings, sets for new jobs that do not set it. Applies to every
-- INSERT.
--
-- A column counts as not set if it has exactly its default: queue 'default', priority 0, run_at the transaction's
-- now().
--
-- An enqueue pays nothing while there are no templates: the trigger (bugle.before_insert) reads a flag, the sequence
-- bugle.templates, which is set with the first template, and reads the table only then. A sequence is not
-- transactional: the flag is set before its template commits, and stays set. It only means that there may be one.

create or replace function bugle.apply_template(p_job bugle.jobs_live) returns bugle.jobs_live
language plpgsql
as $$
declare
  v_new bugle.jobs_live := p_job;
  v_template bugle.commands;
  v_settings bugle.settings;
begin
  if pg_sequence_last_value('bugle.templates') is null then
    return v_new;
  end if;
  select c.* into v_template from bugle.commands c where c.name = v_new.command;
  select s.* into v_settings from bugle.settings s;

  if v_template.queue is not null and v_new.queue = 'default' then
    v_new.queue := v_template.queue;
  end if;
  if v_template.priority is not null and v_new.priority = 0 then
    v_new.priority := v_template.priority;
  end if;
  if v_template.delay is not null and v_new.run_at = now() then
    v_new.run_at := now() + v_template.delay;
  end if;
  v_new.deadline := coalesce(v_new.deadline,
    greatest(v_new.run_at, now()) + coalesce(v_template.deadline, v_settings.default_deadline));
  if v_template.headers is not null then
    v_new.headers := v_template.headers || coalesce(v_new.headers, '{}');
  end if;
  v_new.order_key := coalesce(v_new.order_key, bugle.key_in(v_new.payload, v_template.order_key));
  v_new.limit_key := coalesce(v_new.limit_key, bugle.key_in(v_new.payload, v_template.limit_key));
  v_new.fair_key := coalesce(v_new.fair_key, bugle.key_in(v_new.payload, v_template.fair_key));
  v_new.on_success := coalesce(v_new.on_success, v_template.on_success);
  v_new.on_failure := coalesce(v_new.on_failure, v_template.on_failure);
  v_new.steps := coalesce(v_new.steps, v_template.steps);
  if v_template.unique_payload and v_new.unique_key is null then
    v_new.unique_key := md5(v_new.payload::text);
    if v_template.unique_for is not null and v_new.idempotency_key is null then
      v_new.idempotency_key := v_new.unique_key;
      v_new.idempotency_ttl := v_template.unique_for;
    end if;
  end if;
  if v_template.required_keys is not null
    and not (jsonb_typeof(v_new.payload) = 'object' and v_new.payload ?& v_template.required_keys)
  then
    perform bugle.refuse('JB001',
      case when jsonb_typeof(v_new.payload) <> 'object'
        then format('column "payload" must be a JSON object for the command %s, not %s',
          bugle.quoted(v_new.command), jsonb_typeof(v_new.payload))
        else format('column "payload" lacks keys that the command %s requires: %s', bugle.quoted(v_new.command), (
          select string_agg(bugle.quoted(k.key), ', ')
          from unnest(v_template.required_keys) k (key)
          where not v_new.payload ? k.key)) end,
      format('bugle.commands.required_keys lists: %s.', array_to_string(v_template.required_keys, ', ')));
  end if;
  if v_settings.known_commands_only then
    -- of a chain, the command is only a name
    perform bugle.refuse_unknown_names(coalesce(v_new.steps, array[v_new.command]) || v_new.on_success
      || v_new.on_failure);
  end if;
  return v_new;
end
$$;
comment on function bugle.apply_template is
  'A new job with the defaults of its command and of the settings; or rejected, if its payload lacks a required key.';

create or replace function bugle.key_in(p_payload jsonb, p_path jsonpath) returns text
language sql immutable parallel safe
return jsonb_path_query_first(p_payload, p_path, silent => true) #>> '{}';
comment on function bugle.key_in is 'The key at a path of a payload; null if there is none.';

-- How many letters have to be inserted, removed or replaced, or swapped with the next. Only errors ask for it.
create or replace function bugle.letters_apart(p_a text, p_b text) returns integer
language plpgsql immutable parallel safe
as $$
declare
  v_a constant text[] := string_to_array(p_a, null);
  v_b constant text[] := string_to_array(p_b, null);
  v_row integer[] := array(select generate_series(0, length(p_b)));
  v_above integer[];
  v_before integer[];
  v_least integer;
begin
  for i in 1 .. length(p_a) loop
    v_before := v_above;
    v_above := v_row;
    v_row := array[i];
    for j in 1 .. length(p_b) loop
      v_least := least(v_above[j] + case when v_a[i] = v_b[j] then 0 else 1 end, v_above[j + 1] + 1, v_row[j] + 1);
      if i > 1 and j > 1 and v_a[i] = v_b[j - 1] and v_a[i - 1] = v_b[j] then
        v_least := least(v_least, v_before[j - 1] + 1);
      end if;
      v_row := v_row || v_least;
    end loop;
  end loop;
  return v_row[length(p_b) + 1];
end
$$;
comment on function bugle.letters_apart is 'How much two names differ: typing errors from one to the other.';

create or replace function bugle.nearest_command(p_name text) returns text
language sql stable
as $$
  select n.name
  from (
    select c.name, bugle.letters_apart(p_name, c.name) as apart
    from (
      select k.name
      from bugle.commands k
      where abs(length(k.name) - length(p_name)) <= length(p_name) / 3
        and length(k.name) <= 60
      limit 200) c) n
  where n.apart between 1 and greatest(length(p_name) / 3, 1)
  order by n.apart, n.name
  limit 1
$$;
comment on function bugle.nearest_command is 'The command in bugle.commands that a misspelled name probably means.';

create or replace function bugle.refuse_unknown_names(p_names text[]) returns void
language plpgsql
as $$
declare
  v_unknown constant text[] := array(
    select distinct n.name
    from unnest(p_names) n (name)
    where n.name is not null
      and not exists (select from bugle.commands c where c.name = n.name)
    order by n.name);
begin
  if v_unknown <> '{}' then
    perform bugle.refuse('JB006', format('there is no command %s', (
        select string_agg(bugle.quoted(u.name), ', ' order by u.name) from unnest(v_unknown) u (name))),
      concat('Did you mean ' || bugle.quoted(bugle.nearest_command(v_unknown[1])) || '? ',
        'bugle.settings.known_commands_only is set: insert a row into bugle.commands for a new command.'));
  end if;
end
$$;
comment on function bugle.refuse_unknown_names is 'Reject names of commands without a row in bugle.commands.';

create or replace function bugle.flag_templates() returns void
language sql
as $$
  select setval('bugle.templates', 1)
  where exists (select from bugle.commands c where c.is_template or c.steps is not null)
    or exists (select from bugle.settings s where s.default_deadline is not null or s.known_commands_only);
  select setval('bugle.conditions', 1)
  where exists (select from bugle.commands c where num_nonnulls(c.retry_when, c.wait_when) > 0)
$$;
comment on function bugle.flag_templates is
  'Set the flags that make new jobs look for defaults, and completions for conditions, if there are any.';

create or replace function bugle.note_templates() returns trigger
language plpgsql set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.flag_templates();
  return null;
end
$$;
comment on function bugle.note_templates is 'Trigger: set the flag that makes enqueues search for a template.';

select bugle.keep_trigger('bugle.commands', 'note_templates', $$
  after insert or update or delete or truncate on bugle.commands
  for each statement execute function bugle.note_templates()$$);

select bugle.keep_trigger('bugle.settings', 'note_templates', $$
  after insert or update on bugle.settings for each statement execute function bugle.note_templates()$$);

-- For rows that came by logical replication, which fires no trigger and does not replicate sequences.
select bugle.flag_templates();
