-- clock: the database's clock was set back. Called by the keeper with each tick.
--
-- The keeper stamps every tick, so a clock that is behind the last stamp was set back, by about that much: the time
-- since the tick, about a second, is missing. Times that the engine computed from the clock before (retries, snoozes,
-- answers, limits on starts, schedules, its own records) move with it; otherwise they would all be late by the step.
-- Times that users chose (run_at, deadline, starts_at) and wall-clock times (cron) stay.
--
-- This only moves times; what is due then is done by the maintenance tasks that follow.

-- Under the row lock of bugle.keeping, which every tick takes: two keepers do not both move the same times.
create or replace function bugle.check_clock() returns interval
language plpgsql
as $$
declare
  v_ticked_at timestamptz;
  v_step interval;
begin
  select k.ticked_at into v_ticked_at from bugle.keeping k for update;
  -- a statement of its own: the lock may have been waited for
  v_step := v_ticked_at - clock_timestamp();
  -- a smaller step makes nothing late by more than that
  if v_step <= interval '2 seconds' then
    return null;
  end if;
  perform bugle.clock_stepped_back(v_step);
  return v_step;
end
$$;
comment on function bugle.check_clock is 'Find out whether the clock was set back since the last tick, and move the '
  'times that were computed from it. Returns by how much, or null.';

-- Locked rows are skipped: their session writes them by the new clock, or waiting for it would take too long.
create or replace function bugle.clock_stepped_back(p_step interval) returns void
language plpgsql
as $$
declare
  v_now constant timestamptz := clock_timestamp();
begin
  update bugle.keeping k
  set ticked_at = least(k.ticked_at, v_now),
    watching_since = least(k.watching_since, v_now),
    upkeep_at = least(k.upkeep_at, v_now - interval '1 hour'),
    stepped_at = v_now,
    stepped_by = p_step;

  -- A frozen worker gets its whole lease again from now on, and a lost one its grace. Healthy ones send heartbeats.
  update bugle.registrations r
  set seen_at = least(r.seen_at, v_now),
    lost_at = case when r.lost_at > v_now then v_now else r.lost_at end
  where r.id = any (array(
    select l.id
    from bugle.registrations l
    where l.stopped_at is null
      and (l.seen_at > v_now or l.lost_at > v_now)
    order by l.id
    for update skip locked));

  update bugle.unserved_routes u set since = u.since - p_step;
  perform bugle.move_jobs(p_step, v_now);
  perform bugle.move_starts(p_step);
  perform bugle.move_schedules(p_step, v_now);
end
$$;
comment on function bugle.clock_stepped_back is
  'Move back by this much what the engine computed from the clock before it was set back.';

-- Retries, snoozes, delays of templates, and the time by which an answer is due. A run_at that came with the job, or
-- that an operator set since it last ran, stays. Rows written in the last seconds were written by the new clock.
create or replace function bugle.move_jobs(p_step interval, p_now timestamptz) returns integer
language plpgsql
as $$
declare
  v_ids bigint[];
begin
  v_ids := array(
    select j.id
    from bugle.jobs_live j
      left join bugle.commands c on c.name = j.command
    where coalesce(j.paused_from, j.state) in ('scheduled', 'retrying', 'waiting')
      and greatest(j.run_at, j.answer_by) > p_now
      and j.updated_at not between p_now - interval '10 seconds' and p_now
      and (j.first_started_at is not null or j.run_at = j.created_at + c.delay)
      and not exists (
        select
        from bugle.changes o
        where o.job = j.id
          and o.verb = 'reschedule'
          and o.changed_at >= coalesce(j.started_at, '-infinity'))
    order by j.id
    for update of j skip locked);
  update bugle.jobs_live j
  set run_at = case when j.run_at > p_now then j.run_at - p_step else j.run_at end,
    answer_by = j.answer_by - p_step,
    updated_at = p_now
  where j.id = any (v_ids);
  return cardinality(v_ids);
end
$$;
comment on function bugle.move_jobs is 'Move the times at which jobs are tried again, or answers are due, back by a '
  'step of the clock. Returns how many jobs.';

-- All rows by the same amount, so that their order stays. With starts in the future, no job of a limited queue would
-- start.
create or replace function bugle.move_starts(p_step interval) returns void
language plpgsql
as $$
begin
  begin
    update bugle.starts s set started_at = s.started_at - p_step;
  exception when unique_violation then
    -- two rows exactly a step apart collide: start a few jobs too many rather than none for as long as the step
    delete from bugle.starts s where s.started_at > clock_timestamp();
  end;
  -- recheck at once: claims record anew when there is room
  update bugle.claim_positions t
  set recheck_at = clock_timestamp()
  where t.queue = any (array(
    select d.queue
    from bugle.claim_positions d
    where d.recheck_at is not null
    order by d.queue
    for update skip locked));
end
$$;
comment on function bugle.move_starts is 'Move recent starts back by a step of the clock, and recheck limited queues.';

-- An interval measures elapsed time: it continues as if the clock had not changed, at the next of its slots for which
-- the interval has passed. A cron expression means times of day: it continues with the first one that has not been
-- handled.
create or replace function bugle.move_schedules(p_step interval, p_now timestamptz) returns void
language plpgsql
as $$
declare
  v_schedule bugle.schedules;
begin
  for v_schedule in
    select s.*
    from bugle.schedules s
    where s.next_at > p_now
    order by s.name
    for update skip locked
  loop
    begin
      update bugle.schedules s
      set next_at = bugle.free_slot_after(v_schedule, case
        when v_schedule.every is null then p_now
        -- the step is known to about a second: a slot must not be missed for that
        else greatest(v_schedule.next_at - p_step - least(v_schedule.every / 2, interval '5 seconds'), p_now) end)
      where s.name = v_schedule.name;
    exception when others then
      null; -- it keeps its next_at; firing it will record the error
    end;
  end loop;
end
$$;
comment on function bugle.move_schedules is 'Compute again when schedules fire next, after the clock was set back.';

create or replace function bugle.clock(out ahead interval, out stepped_at timestamptz, out stepped_by interval)
language sql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
  select k.ticked_at - clock_timestamp(), k.stepped_at, k.stepped_by from bugle.keeping k
$$;
comment on function bugle.clock is 'How far the keeper''s last tick lies in the future, if the clock was set back '
  'since; and when that was last noticed, and by how much. For "bugle doctor".';
