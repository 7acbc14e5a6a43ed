-- schedule: time -> ready. Users insert into bugle.schedules, the keeper fires; the calendar is in 71_cron.sql.
--
-- A slot is a time at which a schedule fires. It is handled in one transaction: its row in bugle.schedule_runs, the
-- job, and the schedule's next_at. The primary key of the row makes it fire once; that there is one keeper only saves
-- work.

create or replace function bugle.refuse_schedule(p_column text, p_value text, p_why text, p_hint text) returns boolean
language plpgsql
as $$
begin
  return bugle.refuse('JB005',
    format('column "%s" (%s): %s', p_column, coalesce(bugle.quoted(p_value), 'null'), p_why), p_hint);
end
$$;
comment on function bugle.refuse_schedule is 'Reject a schedule, naming the column at fault.';

-- A time zone is checked by using it: reading the list of all names takes long. Only plain names are accepted, because
-- Postgres accepts every "abc5" as a zone.
create or replace function bugle.check_timezone(p_timezone text) returns void
language plpgsql immutable
as $$
begin
  if p_timezone ~ '^[A-Za-z_]+(/[A-Za-z0-9_+-]+)*$' then
    perform bugle.wall_time(p_timezone, '2000-01-01');
    return;
  end if;
  raise invalid_parameter_value;
exception when invalid_parameter_value then
  perform bugle.refuse_schedule('timezone', p_timezone, 'there is no such time zone',
    'A name such as ''Europe/Berlin'' or ''UTC''. See pg_timezone_names.');
end
$$;
comment on function bugle.check_timezone is 'Refuse the name of a time zone that does not exist.';

-- Slots are whole intervals from the start, so they do not drift. A day is 24 hours. There are slots before the start,
-- because the clock may have been set back since the schedule was created; slot_after decides whether one fires.
create or replace function bugle.next_interval_slot(p_every interval, p_start timestamptz, p_after timestamptz)
returns timestamptz
language plpgsql immutable
as $$
declare
  v_seconds constant numeric := extract(epoch from p_every);
begin
  return p_start + make_interval(
    secs => ((floor(extract(epoch from p_after - p_start) / v_seconds) + 1) * v_seconds)::double precision);
end
$$;
comment on function bugle.next_interval_slot is
  'The next moment that is whole intervals from a start, strictly later than p_after.';

create or replace function bugle.slot_after(p_schedule bugle.schedules, p_after timestamptz) returns timestamptz
language plpgsql immutable
as $$
declare
  v_after constant timestamptz := greatest(p_after, p_schedule.starts_at - interval '1 microsecond');
  v_slot timestamptz;
begin
  v_slot := case
    when p_schedule.every is null then bugle.next_slot(p_schedule.cron, p_schedule.timezone, v_after)
    else bugle.next_interval_slot(p_schedule.every, coalesce(p_schedule.starts_at, p_schedule.created_at), v_after) end;
  return case when p_schedule.ends_at < v_slot then null else v_slot end;
end
$$;
comment on function bugle.slot_after is
  'The next slot of a schedule, strictly later than p_after. Null if there is none.';

-- A future slot that has been handled means that the clock was set back. A time of day does not fire again. An interval
-- measures elapsed time: the same moment fires again, with a microsecond added to distinguish the slots.
create or replace function bugle.free_slot_after(p_schedule bugle.schedules, p_after timestamptz) returns timestamptz
language plpgsql stable
as $$
declare
  v_slot timestamptz := bugle.slot_after(p_schedule, p_after);
begin
  while exists (
    select from bugle.schedule_runs r where r.schedule = p_schedule.name and r.slot = v_slot)
  loop
    v_slot := case
      when p_schedule.every is null then bugle.slot_after(p_schedule, v_slot)
      else v_slot + interval '1 microsecond' end;
  end loop;
  return v_slot;
end
$$;
comment on function bugle.free_slot_after is
  'The next slot of a schedule that has not been handled, strictly later than p_after. Null if there is none.';

-- The columns of a schedule that are columns of a job are those of its jobs.
create or replace function bugle.scheduled_job(p_schedule bugle.schedules, p_slot timestamptz) returns bugle.jobs_live
language plpgsql stable
as $$
declare
  v_job bugle.jobs_live := jsonb_populate_record(null::bugle.jobs_live, (
    select jsonb_object_agg(c.key, c.value)
    from jsonb_each(to_jsonb(p_schedule)) c
    where c.key = any (bugle.settable_columns())));
begin
  v_job.state := 'ready';
  v_job.payload := p_schedule.payload; -- from JSON, null would become the default
  v_job.run_at := least(p_slot, now());
  v_job.headers := coalesce(p_schedule.headers, '{}') || jsonb_build_object('schedule', p_schedule.name,
    'slot', to_char(p_slot at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'));
  return v_job;
end
$$;
comment on function bugle.scheduled_job is 'The job that a schedule enqueues for a slot.';

create or replace function bugle.settable_schedule_columns() returns text[]
language sql immutable parallel safe
return '{name,cron,every,timezone,command,payload,queue,priority,timeout,max_attempts,retry_policy,retry_delay,headers,'
  'steps,misfire,catch_up_limit,overlap,starts_at,ends_at,paused_at}'::text[];
comment on function bugle.settable_schedule_columns is
  'The columns of bugle.schedules that an operator may set. The others are written when it fires.';

-- By the rules for jobs. Their errors become errors of the schedule.
create or replace function bugle.check_scheduled_job(p_new bugle.schedules) returns void
language plpgsql
as $$
declare
  v_hint text;
begin
  perform bugle.check_job(bugle.scheduled_job(p_new, now())), bugle.checked_steps(p_new.steps);
exception when sqlstate 'JB001' or sqlstate 'JB003' or sqlstate 'JB004' then
  get stacked diagnostics v_hint = pg_exception_hint;
  perform bugle.refuse('JB005', sqlerrm, v_hint);
end
$$;
comment on function bugle.check_scheduled_job is 'Reject a schedule whose jobs would be rejected.';

create or replace function bugle.check_schedule() returns trigger
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.check_scheduled_job(new);
  perform bugle.check_timezone(new.timezone);
  if new.cron is not null then
    perform bugle.parse_cron(new.cron);
  end if;
  new.steps := bugle.checked_steps(new.steps);
  if (tg_op = 'INSERT' or (new.command, new.steps) is distinct from (old.command, old.steps))
    and (select s.known_commands_only from bugle.settings s)
  then
    perform bugle.refuse_unknown_names(coalesce(new.steps, array[new.command]));
  end if;

  if tg_op = 'INSERT' then
    new.created_at := now();
    new.last_at := null;
    new.last_job := null;
    new.last_error := null;
  end if;
  if tg_op = 'INSERT' or old.next_at is null or (old.paused_at is not null and new.paused_at is null)
    or (new.cron, new.every, new.timezone, new.starts_at, new.ends_at)
      is distinct from (old.cron, old.every, old.timezone, old.starts_at, old.ends_at)
  then
    new.next_at := bugle.slot_after(new, now());
    if new.next_at is null and tg_op = 'INSERT' then
      perform bugle.refuse_schedule(
        case when new.ends_at is null then 'cron' else 'ends_at' end, coalesce(new.ends_at::text, new.cron),
        'this schedule would never fire', 'Check it with bugle.schedule_preview.');
    end if;
  end if;
  if new.paused_at is null and new.next_at is not null then
    perform bugle.expect(new.next_at);
  end if;
  return new;
end
$$;
comment on function bugle.check_schedule is
  'Trigger: reject an invalid schedule, compute when it fires next, and notify the keeper.';

select bugle.keep_trigger('bugle.schedules', 'check_schedule', format(
  'before insert or update of %s on bugle.schedules for each row execute function bugle.check_schedule()',
  array_to_string(bugle.settable_schedule_columns(), ', ')));

-- After a long outage there may be a million of them: the search goes backwards from now, in a window that grows until
-- it holds enough.
create or replace function bugle.due_slots(p_schedule bugle.schedules, p_now timestamptz, p_count integer)
returns timestamptz[]
language plpgsql immutable
as $$
declare
  v_slots timestamptz[];
  v_slot timestamptz := bugle.slot_after(p_schedule, p_schedule.next_at);
  v_from timestamptz;
  v_seconds double precision := 2 * p_count;
begin
  if v_slot is null or v_slot > p_now then
    return array[p_schedule.next_at];
  end if;
  loop
    v_from := greatest(p_now - make_interval(secs => v_seconds), p_schedule.next_at - interval '1 microsecond');
    v_slots := '{}';
    v_slot := v_from;
    loop
      v_slot := bugle.slot_after(p_schedule, v_slot);
      exit when v_slot is null or v_slot > p_now;
      v_slots := v_slots || v_slot;
    end loop;
    if cardinality(v_slots) >= p_count or v_from < p_schedule.next_at then
      return v_slots[greatest(cardinality(v_slots) - p_count, 0) + 1 :];
    end if;
    v_seconds := v_seconds * 4;
  end loop;
end
$$;
comment on function bugle.due_slots is 'The newest p_count slots of a schedule that are due, oldest first.';

-- Only its last hundred jobs count.
create or replace function bugle.schedule_is_busy(p_name text) returns boolean
language sql stable
as $$
  select exists (
    select
    from (
      select r.job
      from bugle.schedule_runs r
      where r.schedule = p_name
      order by r.slot desc
      limit 100) r
      join bugle.jobs_live j on j.id = r.job)
$$;
comment on function bugle.schedule_is_busy is 'Whether a job of this schedule has not ended yet.';

-- The row of bugle.schedule_runs comes first: a session that loses the race for it waits, and enqueues nothing.
create or replace function bugle.fire_slot(p_schedule bugle.schedules, p_slot timestamptz, p_skipped text default null)
returns bigint
language plpgsql
as $$
declare
  v_job bugle.jobs_live;
begin
  if p_skipped is null then
    v_job := bugle.scheduled_job(p_schedule, p_slot);
    v_job.id := nextval('bugle.job_ids');
  end if;
  insert into bugle.schedule_runs (schedule, slot, job, skipped)
  values (p_schedule.name, p_slot, v_job.id, p_skipped)
  on conflict (schedule, slot) do nothing;
  -- seed: slot_fires_twice
  if not found or v_job.id is null then
    return null;
  end if;
  -- this runs with the owner's rights: the caller must not be able to switch the checks off
  perform set_config('bugle.skip_checks', '', true);
  insert into bugle.jobs_live overriding system value select v_job.*
  on conflict do nothing;
  if not found then
    -- a live job has the unique key of the command's template: also an overlap
    update bugle.schedule_runs r
    set job = null,
      skipped = 'overlap'
    where r.schedule = p_schedule.name
      and r.slot = p_slot;
    return null;
  end if;
  return v_job.id;
end
$$;
comment on function bugle.fire_slot is
  'Handle one slot of a schedule, once: enqueue its job, or record why not. Returns the job, or null.';

create or replace function bugle.fire_due_slots(p_schedule bugle.schedules, p_now timestamptz) returns integer
language plpgsql
as $$
declare
  v_slot timestamptz;
  v_job bigint;
  v_last bigint;
  v_fired integer := 0;
begin
  foreach v_slot in array bugle.due_slots(p_schedule, p_now,
    case p_schedule.misfire when 'catch_up' then p_schedule.catch_up_limit else 1 end)
  loop
    v_job := bugle.fire_slot(p_schedule, v_slot, case
      when p_schedule.misfire = 'skip' and v_slot < p_now - interval '1 minute' then 'late'
      when p_schedule.overlap = 'skip' and bugle.schedule_is_busy(p_schedule.name) then 'overlap' end);
    v_last := coalesce(v_job, v_last);
    v_fired := v_fired + (v_job is not null)::integer;
  end loop;
  update bugle.schedules s
  -- seed: slot_fires_twice
  set next_at = bugle.free_slot_after(p_schedule, p_now),
    last_at = case when v_fired > 0 then v_slot else s.last_at end,
    last_job = coalesce(v_last, s.last_job),
    last_error = null
  where s.name = p_schedule.name;
  return v_fired;
end
$$;
comment on function bugle.fire_due_slots is 'Handle the slots of one schedule that are due, by its rules for missed '
  'and overlapping ones. Returns how many jobs.';

-- The failure of one schedule must not stop the others: it is recorded, and the schedule continues with its next slot.
create or replace function bugle.fire_schedules(p_now timestamptz default now(), p_limit integer default 1000)
returns integer
language plpgsql
as $$
declare
  v_schedule bugle.schedules;
  v_fired integer := 0;
  v_error text;
begin
  for v_schedule in
    select s.*
    from bugle.schedules s
    where s.paused_at is null
      and s.next_at <= p_now
    order by s.next_at
    limit p_limit
    for update skip locked
  loop
    begin
      v_fired := v_fired + bugle.fire_due_slots(v_schedule, p_now);
    exception when others then
      v_error := sqlerrm;
      begin
        perform bugle.fire_slot(v_schedule, v_schedule.next_at, 'error');
        update bugle.schedules s
        set next_at = bugle.free_slot_after(v_schedule, p_now), last_error = bugle.bounded(v_error)
        where s.name = v_schedule.name;
      exception when others then
        -- its next slot is unknown: it does not fire until an operator changes or resumes it
        update bugle.schedules s
        set next_at = null, last_error = bugle.bounded(v_error)
        where s.name = v_schedule.name;
      end;
    end;
  end loop;
  return v_fired;
end
$$;
comment on function bugle.fire_schedules is 'Enqueue a job for every slot that is due. Returns how many jobs.';
