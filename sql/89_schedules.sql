-- operate, schedules: hold one back, let it go on, run it now. Called by operators; rows are added and changed by plain SQL.

create or replace function bugle.unknown_schedule(p_name text) returns void
language plpgsql
as $$
begin
  perform bugle.refuse('JB030', format('there is no schedule %s', coalesce(bugle.quoted(p_name), 'null')), 'See bugle.schedules.');
end
$$;
comment on function bugle.unknown_schedule is 'Refuse a verb on a schedule that does not exist.';
revoke execute on function bugle.unknown_schedule from public;

create or replace function bugle.pause_schedule(p_name text, p_note text default null) returns void
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  update bugle.schedules s set paused_at = coalesce(s.paused_at, now()) where s.name = p_name;
  if not found then
    perform bugle.unknown_schedule(p_name);
  end if;
  perform bugle.record_change('pause_schedule', null, null, 'paused', p_note, p_schedule => p_name);
end
$$;
comment on function bugle.pause_schedule is 'Fire nothing from a schedule until it is resumed. Jobs that are enqueued already go on.';
revoke execute on function bugle.pause_schedule from public;

-- Slots that passed meanwhile were meant not to fire: they are no misfires. bugle.check_schedule finds the next one.
create or replace function bugle.resume_schedule(p_name text, p_note text default null) returns timestamptz
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_next timestamptz;
begin
  update bugle.schedules s
  set paused_at = null
  where s.name = p_name
    and s.paused_at is not null
  returning s.next_at into v_next;
  if not found then
    perform bugle.unknown_schedule(p_name)
    where not exists (select from bugle.schedules s where s.name = p_name);
    perform bugle.refuse('JB031', format('schedule %s is not paused', bugle.quoted(p_name)), 'See bugle.schedules.paused_at.');
  end if;
  perform bugle.record_change('resume_schedule', null, 'paused', null, p_note, p_schedule => p_name);
  return v_next;
end
$$;
comment on function bugle.resume_schedule is 'Fire a paused schedule again, from its next slot on. Returns when that is.';
revoke execute on function bugle.resume_schedule from public;

create or replace function bugle.run_schedule_now(p_name text, p_note text default null) returns bigint
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_schedule bugle.schedules;
  v_job bigint;
begin
  select s.* into v_schedule from bugle.schedules s where s.name = p_name for update;
  if not found then
    perform bugle.unknown_schedule(p_name);
  end if;
  v_job := bugle.fire_slot(v_schedule, clock_timestamp());
  update bugle.schedules s set last_job = coalesce(v_job, s.last_job) where s.name = p_name;
  perform bugle.record_change('run_schedule_now', null, null, null, p_note, p_schedule => p_name);
  return v_job;
end
$$;
comment on function bugle.run_schedule_now is 'Enqueue a job of a schedule now, besides its slots. Returns its id.';
revoke execute on function bugle.run_schedule_now from public;
