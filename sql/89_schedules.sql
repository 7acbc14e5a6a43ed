-- schedules, for operators: pause one, resume it, run it now. Rows are added and changed by plain SQL.

create or replace function bugle.refuse_unknown_schedule(p_name text) returns void
language plpgsql
as $$
begin
  perform bugle.refuse('JB030', format('there is no schedule %s', coalesce(bugle.quoted(p_name), 'null')),
    'See bugle.schedules.');
end
$$;
comment on function bugle.refuse_unknown_schedule is 'Raise the error for a schedule that does not exist.';

create or replace function bugle.record_schedule() returns trigger
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_before constant jsonb := case when tg_op <> 'INSERT' then to_jsonb(old) else '{}' end;
  v_after constant jsonb := case when tg_op <> 'DELETE' then to_jsonb(new) else '{}' end;
  v_verb constant text := nullif(current_setting('bugle.verb', true), '');
  v_note constant text := nullif(current_setting('bugle.note', true), '');
begin
  perform bugle.record_change(
    coalesce(v_verb, lower(tg_op) || '_schedule'), null,
    case when v_before ->> 'paused_at' is not null then 'paused' end,
    case when tg_op = 'DELETE' then 'removed' when v_after ->> 'paused_at' is not null then 'paused' end,
    coalesce(v_note, case when tg_op = 'UPDATE' and v_verb is null then (
      select 'changed: ' || string_agg(a.key, ', ' order by a.key)
      from jsonb_each(v_after) a
      where a.value is distinct from v_before -> a.key) end),
    p_schedule => coalesce(v_after ->> 'name', v_before ->> 'name'));
  return null;
end
$$;
comment on function bugle.record_schedule is 'Trigger: record who added, changed or removed a schedule.';

select bugle.keep_trigger('bugle.schedules', 'record_schedule', format(
  'after insert or delete or update of %s on bugle.schedules for each row execute function bugle.record_schedule()',
  array_to_string(bugle.settable_schedule_columns(), ', ')));

create or replace function bugle.pause_schedule(p_name text, p_note text default null) returns void
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.set_verb('pause_schedule', p_note);
  update bugle.schedules s set paused_at = coalesce(s.paused_at, now()) where s.name = p_name;
  if not found then
    perform bugle.refuse_unknown_schedule(p_name);
  end if;
  perform bugle.set_verb('', '');
end
$$;
comment on function bugle.pause_schedule is
  'Stop a schedule from firing until it is resumed. Jobs that are enqueued already are not affected.';

-- Slots that passed in the meantime are not misfires: they were not to fire. bugle.check_schedule computes the next
-- one.
create or replace function bugle.resume_schedule(p_name text, p_note text default null) returns timestamptz
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_next timestamptz;
begin
  perform bugle.set_verb('resume_schedule', p_note);
  update bugle.schedules s
  set paused_at = null
  where s.name = p_name
    and s.paused_at is not null
  returning s.next_at into v_next;
  if not found then
    perform bugle.refuse_unknown_schedule(p_name)
    where not exists (select from bugle.schedules s where s.name = p_name);
    perform bugle.refuse('JB031', format('schedule %s is not paused', bugle.quoted(p_name)),
      'See bugle.schedules.paused_at.');
  end if;
  perform bugle.set_verb('', '');
  return v_next;
end
$$;
comment on function bugle.resume_schedule is
  'Fire a paused schedule again, from its next slot on. Returns when that is.';

create or replace function bugle.run_schedule_now(p_name text, p_note text default null) returns bigint
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_schedule bugle.schedules;
  v_job bigint;
begin
  select s.* into v_schedule from bugle.schedules s where s.name = p_name for update;
  if not found then
    perform bugle.refuse_unknown_schedule(p_name);
  end if;
  v_job := bugle.fire_slot(v_schedule, clock_timestamp());
  update bugle.schedules s set last_job = coalesce(v_job, s.last_job) where s.name = p_name;
  perform bugle.record_change('run_schedule_now', null, null, null, p_note, p_schedule => p_name);
  return v_job;
end
$$;
comment on function bugle.run_schedule_now is
  'Enqueue a job of a schedule now, in addition to its scheduled times. Returns its id.';
