-- template: what a row of bugle.commands sets for new jobs of that command that leave it out. Applies to every INSERT.
--
-- A column counts as left out if it has exactly its default: queue 'default', priority 0, run_at the transaction's
-- now().
--
-- Without templates an enqueue must not pay for them: the trigger (bugle.before_insert) reads a flag, the sequence
-- bugle.templates, whose value is set with the first template. Only then is the table read. A sequence is not
-- transactional: the flag is set before its template commits, and stays set. It is no more than a reason to look.

create or replace function bugle.apply_template(p_job bugle.jobs_live) returns bugle.jobs_live
language plpgsql
as $$
declare
  v_new bugle.jobs_live := p_job;
  v_template bugle.commands;
begin
  select c.* into v_template
  from bugle.commands c
  where c.name = v_new.command
    and (c.is_template or c.steps is not null);
  if not found then
    return v_new;
  end if;

  if v_template.queue is not null and v_new.queue = 'default' then
    v_new.queue := v_template.queue;
  end if;
  if v_template.priority is not null and v_new.priority = 0 then
    v_new.priority := v_template.priority;
  end if;
  if v_template.delay is not null and v_new.run_at = now() then
    v_new.run_at := now() + v_template.delay;
  end if;
  v_new.on_success := coalesce(v_new.on_success, v_template.on_success);
  v_new.on_failure := coalesce(v_new.on_failure, v_template.on_failure);
  v_new.steps := coalesce(v_new.steps, v_template.steps);
  if v_template.unique_payload and v_new.unique_key is null then
    v_new.unique_key := md5(v_new.payload::text);
  end if;
  if v_template.required_keys is not null
    and not (jsonb_typeof(v_new.payload) = 'object' and v_new.payload ?& v_template.required_keys)
  then
    perform bugle.refuse('JB001',
      case when jsonb_typeof(v_new.payload) <> 'object'
        then format('column "payload" must be a JSON object for the command %s, not %s',
          bugle.quoted(v_new.command), jsonb_typeof(v_new.payload))
        else format('column "payload" lacks what the command %s requires: %s', bugle.quoted(v_new.command), (
          select string_agg(bugle.quoted(k.key), ', ')
          from unnest(v_template.required_keys) k (key)
          where not v_new.payload ? k.key)) end,
      format('bugle.commands.required_keys asks for: %s.', array_to_string(v_template.required_keys, ', ')));
  end if;
  return v_new;
end
$$;
comment on function bugle.apply_template is
  'A new job with what the template of its command sets; or refused, if its payload lacks a required key.';

create or replace function bugle.note_templates() returns trigger
language plpgsql set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if exists (select from bugle.commands c where c.is_template or c.steps is not null) then
    perform setval('bugle.templates', 1);
  end if;
  return null;
end
$$;
comment on function bugle.note_templates is 'Trigger: set the flag that makes new jobs look for a template.';

select bugle.keep_trigger('bugle.commands', 'note_templates', $$
  after insert or update or delete or truncate on bugle.commands
  for each statement execute function bugle.note_templates()$$);

-- For rows that came by logical replication, which fires no trigger and does not replicate sequences.
select setval('bugle.templates', 1)
where exists (select from bugle.commands c where c.is_template or c.steps is not null);
