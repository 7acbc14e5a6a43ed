-- template: what a row of bugle.commands sets for new jobs of that command that leave it out. Runs at every plain INSERT.
--
-- A column counts as left out if it has exactly its default: queue 'default', priority 0, run_at the transaction's now().
--
-- Nobody without templates may pay for them. A WHEN clause cannot look into a table, and a function for every row is dear. So
-- the WHEN clause reads a flag, the sequence bugle.templates, which is called once there has been a template; only then does
-- the function run. The clause is short, because its text is read anew for each statement. A sequence is not transactional:
-- the flag is up before its template commits, and stays up. It is only a reason to look.
-- A trigger that is enabled with the first template would need no flag, but ALTER TABLE … ENABLE TRIGGER locks out every
-- enqueuer, claim and completion until the transaction that inserts the template ends.
--
-- CPU time without templates, before this trigger, the keys and their index, and after; means of 6 to 8 runs on two busy cores
-- that differ by a third among themselves. Rows one by one 230 and 239 µs (0.96), 100,000 rows in one statement 9.2 and
-- 10.6 µs each (0.87; 0.76 by the fastest runs). With a note in a setting that saves reading the flag again: 218 and 235 µs
-- (0.93), 8.3 and 9.1 µs (0.91). With an earlier form of the function, which asked twice, for every row: 7.3 and 27 µs (0.27).
-- What part of it is the flag, the longer row or admit's WHEN clause was not told apart.

create or replace function bugle.adapt() returns trigger
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_template bugle.commands;
  v_missing text;
begin
  select c.* into v_template
  from bugle.commands c
  where c.name = new.command
    and c.is_template;
  -- a job that the engine puts back among the live ones is not new
  if not found or current_setting('bugle.admit', true) = 'as told' then
    return new;
  end if;

  if v_template.queue is not null and new.queue = 'default' then
    new.queue := v_template.queue;
  end if;
  if v_template.priority is not null and new.priority = 0 then
    new.priority := v_template.priority;
  end if;
  if v_template.delay is not null and new.run_at = now() then
    new.run_at := now() + v_template.delay;
  end if;
  if v_template.unique_payload and new.unique_key is null then
    new.unique_key := md5(new.payload::text);
  end if;
  if v_template.required_keys is not null then
    if jsonb_typeof(new.payload) <> 'object' then
      perform bugle.refuse('JB001', format('column "payload" must be a JSON object for the command %s, not %s',
          bugle.quoted(new.command), jsonb_typeof(new.payload)),
        format('bugle.commands.required_keys asks for: %s.', array_to_string(v_template.required_keys, ', ')));
    end if;
    if not new.payload ?& v_template.required_keys then
      select string_agg(bugle.quoted(k.key), ', ') into v_missing
      from unnest(v_template.required_keys) k (key)
      where not new.payload ? k.key;
      perform bugle.refuse('JB001', format('column "payload" lacks what the command %s requires: %s',
          bugle.quoted(new.command), v_missing),
        format('bugle.commands.required_keys asks for: %s.', array_to_string(v_template.required_keys, ', ')));
    end if;
  end if;
  return new;
end
$$;
comment on function bugle.adapt is 'Trigger: give a new job what the template of its command sets.';
revoke execute on function bugle.adapt from public;

-- Sorts before "admit": what the template sets is checked as if the job had said it.
select bugle.keep_trigger('bugle.jobs_live', 'adapt', $$
  before insert on bugle.jobs_live for each row
  when (pg_sequence_last_value('bugle.templates') is not null)
  execute function bugle.adapt()$$);

create or replace function bugle.note_templates() returns trigger
language plpgsql
as $$
begin
  if exists (select from bugle.commands c where c.is_template) then
    perform setval('bugle.templates', 1);
  end if;
  return null;
end
$$;
comment on function bugle.note_templates is 'Trigger: there has been a template, so new jobs are compared with it.';
revoke execute on function bugle.note_templates from public;

select bugle.keep_trigger('bugle.commands', 'note_templates', $$
  after insert or update or delete or truncate on bugle.commands for each statement execute function bugle.note_templates()$$);

-- Rows that came by logical replication fired no trigger, and sequences are not replicated.
select setval('bugle.templates', 1)
where exists (select from bugle.commands c where c.is_template);
