-- operate, the verbs: what operators call. Three forms each: one id, an array of ids, a filter.

-- The verbs themselves. Each hands over to bugle.operate with the owner's rights.

create or replace function bugle.cancel(p_id bigint, p_note text default null)
returns text
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return bugle.operate_one('cancel', p_id, p_note);
end
$$;
comment on function bugle.cancel(bigint, text) is 'Call a job off. If it runs, its worker is told at once and its executor stopped; a late completion is refused. Returns its state now.';

create or replace function bugle.cancel(p_ids bigint[], p_note text default null)
returns setof bugle.operated
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return query select o.* from bugle.operate('cancel', p_ids, p_note) o;
end
$$;
comment on function bugle.cancel(bigint[], text) is 'Call a job off. If it runs, its worker is told at once and its executor stopped; a late completion is refused. For many at once; answers for each.';

create or replace function bugle.cancel_where(
  p_queue text default null, p_command text default null, p_state_is text default null,
  p_older_than interval default null, p_error_like text default null, p_limit integer default 1000, p_note text default null)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return (
    select count(*) filter (where o.done)
    from bugle.operate('cancel',
      bugle.matching('cancel', p_queue, p_command, p_state_is, p_older_than, p_error_like, p_limit), p_note) o);
end
$$;
comment on function bugle.cancel_where is 'Call a job off. If it runs, its worker is told at once and its executor stopped; a late completion is refused. For all that match; returns how many.';

create or replace function bugle.pause(p_id bigint, p_note text default null)
returns text
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return bugle.operate_one('pause', p_id, p_note);
end
$$;
comment on function bugle.pause(bigint, text) is 'Hold a job back until it is resumed. Returns its state now.';

create or replace function bugle.pause(p_ids bigint[], p_note text default null)
returns setof bugle.operated
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return query select o.* from bugle.operate('pause', p_ids, p_note) o;
end
$$;
comment on function bugle.pause(bigint[], text) is 'Hold a job back until it is resumed. For many at once; answers for each.';

create or replace function bugle.pause_where(
  p_queue text default null, p_command text default null, p_state_is text default null,
  p_older_than interval default null, p_error_like text default null, p_limit integer default 1000, p_note text default null)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return (
    select count(*) filter (where o.done)
    from bugle.operate('pause',
      bugle.matching('pause', p_queue, p_command, p_state_is, p_older_than, p_error_like, p_limit), p_note) o);
end
$$;
comment on function bugle.pause_where is 'Hold a job back until it is resumed. For all that match; returns how many.';

create or replace function bugle.resume(p_id bigint, p_note text default null)
returns text
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return bugle.operate_one('resume', p_id, p_note);
end
$$;
comment on function bugle.resume(bigint, text) is 'Let a paused job go on from where it was. Returns its state now.';

create or replace function bugle.resume(p_ids bigint[], p_note text default null)
returns setof bugle.operated
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return query select o.* from bugle.operate('resume', p_ids, p_note) o;
end
$$;
comment on function bugle.resume(bigint[], text) is 'Let a paused job go on from where it was. For many at once; answers for each.';

create or replace function bugle.resume_where(
  p_queue text default null, p_command text default null, p_state_is text default null,
  p_older_than interval default null, p_error_like text default null, p_limit integer default 1000, p_note text default null)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return (
    select count(*) filter (where o.done)
    from bugle.operate('resume',
      bugle.matching('resume', p_queue, p_command, p_state_is, p_older_than, p_error_like, p_limit), p_note) o);
end
$$;
comment on function bugle.resume_where is 'Let a paused job go on from where it was. For all that match; returns how many.';

-- as they were before chains could go on where they failed
create or replace function bugle.restart(p_id bigint, p_note text default null, p_from_failed_step boolean default false)
returns text
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return bugle.operate_one('restart', p_id, p_note, p_from_failed_step => p_from_failed_step);
end
$$;
comment on function bugle.restart(bigint, text, boolean) is 'Run a failed or cancelled job again: same id, history kept, attempt from 0, from its first step or the one that failed. Completed work is never run again. Returns its state now.';

create or replace function bugle.restart(p_ids bigint[], p_note text default null, p_from_failed_step boolean default false)
returns setof bugle.operated
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return query select o.* from bugle.operate('restart', p_ids, p_note, p_from_failed_step => p_from_failed_step) o;
end
$$;
comment on function bugle.restart(bigint[], text, boolean) is 'Run a failed or cancelled job again: same id, history kept, attempt from 0, from its first step or the one that failed. Completed work is never run again. For many at once; answers for each.';

create or replace function bugle.restart_where(
  p_queue text default null, p_command text default null, p_state_is text default null,
  p_older_than interval default null, p_error_like text default null, p_limit integer default 1000, p_note text default null,
  p_from_failed_step boolean default false)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return (
    select count(*) filter (where o.done)
    from bugle.operate('restart',
      bugle.matching('restart', p_queue, p_command, p_state_is, p_older_than, p_error_like, p_limit), p_note,
      p_from_failed_step => p_from_failed_step) o);
end
$$;
comment on function bugle.restart_where is 'Run a failed or cancelled job again: same id, history kept, attempt from 0, from its first step or the one that failed. Completed work is never run again. For all that match; returns how many.';

create or replace function bugle.remove(p_id bigint, p_note text default null)
returns text
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return bugle.operate_one('remove', p_id, p_note);
end
$$;
comment on function bugle.remove(bigint, text) is 'Delete a job that is not running, wherever it is. Returns its state now.';

create or replace function bugle.remove(p_ids bigint[], p_note text default null)
returns setof bugle.operated
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return query select o.* from bugle.operate('remove', p_ids, p_note) o;
end
$$;
comment on function bugle.remove(bigint[], text) is 'Delete a job that is not running, wherever it is. For many at once; answers for each.';

create or replace function bugle.remove_where(
  p_queue text default null, p_command text default null, p_state_is text default null,
  p_older_than interval default null, p_error_like text default null, p_limit integer default 1000, p_note text default null)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return (
    select count(*) filter (where o.done)
    from bugle.operate('remove',
      bugle.matching('remove', p_queue, p_command, p_state_is, p_older_than, p_error_like, p_limit), p_note) o);
end
$$;
comment on function bugle.remove_where is 'Delete a job that is not running, wherever it is. For all that match; returns how many.';

create or replace function bugle.reschedule(p_id bigint, p_run_at timestamptz, p_note text default null)
returns text
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if p_run_at is null or not isfinite(p_run_at) then
    perform bugle.refuse('JB001', format('"p_run_at" must be a finite time, not %s', coalesce(bugle.quoted(p_run_at::text), 'null')), 'For example now() + interval ''10 minutes''.');
  end if;
  return bugle.operate_one('reschedule', p_id, p_note, p_run_at => p_run_at);
end
$$;
comment on function bugle.reschedule(bigint, timestamptz, text) is 'Move the time at which a job is due. Returns its state now.';

create or replace function bugle.reschedule(p_ids bigint[], p_run_at timestamptz, p_note text default null)
returns setof bugle.operated
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if p_run_at is null or not isfinite(p_run_at) then
    perform bugle.refuse('JB001', format('"p_run_at" must be a finite time, not %s', coalesce(bugle.quoted(p_run_at::text), 'null')), 'For example now() + interval ''10 minutes''.');
  end if;
  return query select o.* from bugle.operate('reschedule', p_ids, p_note, p_run_at => p_run_at) o;
end
$$;
comment on function bugle.reschedule(bigint[], timestamptz, text) is 'Move the time at which a job is due. For many at once; answers for each.';

create or replace function bugle.reschedule_where(
  p_run_at timestamptz, p_queue text default null, p_command text default null, p_state_is text default null,
  p_older_than interval default null, p_error_like text default null, p_limit integer default 1000, p_note text default null)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if p_run_at is null or not isfinite(p_run_at) then
    perform bugle.refuse('JB001', format('"p_run_at" must be a finite time, not %s', coalesce(bugle.quoted(p_run_at::text), 'null')), 'For example now() + interval ''10 minutes''.');
  end if;
  return (
    select count(*) filter (where o.done)
    from bugle.operate('reschedule',
      bugle.matching('reschedule', p_queue, p_command, p_state_is, p_older_than, p_error_like, p_limit), p_note, p_run_at => p_run_at) o);
end
$$;
comment on function bugle.reschedule_where is 'Move the time at which a job is due. For all that match; returns how many.';

create or replace function bugle.set_priority(p_id bigint, p_priority integer, p_note text default null)
returns text
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if p_priority is null then
    perform bugle.refuse('JB001', '"p_priority" must be a number, not null', 'Smaller runs sooner; 0 is the default.');
  end if;
  return bugle.operate_one('set_priority', p_id, p_note, p_priority => p_priority);
end
$$;
comment on function bugle.set_priority(bigint, integer, text) is 'Change a job''s priority: smaller runs sooner. Returns its state now.';

create or replace function bugle.set_priority(p_ids bigint[], p_priority integer, p_note text default null)
returns setof bugle.operated
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if p_priority is null then
    perform bugle.refuse('JB001', '"p_priority" must be a number, not null', 'Smaller runs sooner; 0 is the default.');
  end if;
  return query select o.* from bugle.operate('set_priority', p_ids, p_note, p_priority => p_priority) o;
end
$$;
comment on function bugle.set_priority(bigint[], integer, text) is 'Change a job''s priority: smaller runs sooner. For many at once; answers for each.';

create or replace function bugle.set_priority_where(
  p_priority integer, p_queue text default null, p_command text default null, p_state_is text default null,
  p_older_than interval default null, p_error_like text default null, p_limit integer default 1000, p_note text default null)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if p_priority is null then
    perform bugle.refuse('JB001', '"p_priority" must be a number, not null', 'Smaller runs sooner; 0 is the default.');
  end if;
  return (
    select count(*) filter (where o.done)
    from bugle.operate('set_priority',
      bugle.matching('set_priority', p_queue, p_command, p_state_is, p_older_than, p_error_like, p_limit), p_note, p_priority => p_priority) o);
end
$$;
comment on function bugle.set_priority_where is 'Change a job''s priority: smaller runs sooner. For all that match; returns how many.';

create or replace function bugle.set_state(p_id bigint, p_state text, p_note text default null)
returns text
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if p_state is null or p_state <> all (array['scheduled', 'ready', 'retrying', 'paused', 'completed', 'failed', 'cancelled']) then
    perform bugle.refuse('JB001', format('"p_state" must be a state a job can be put into, not %s', coalesce(bugle.quoted(p_state), 'null')),
      'One of scheduled, ready, retrying, paused, completed, failed, cancelled.');
  end if;
  return bugle.operate_one('set_state', p_id, p_note, p_state => p_state);
end
$$;
comment on function bugle.set_state(bigint, text, text) is 'Overrule: put a job that is not running or completed into a state. Recorded as such. Returns its state now.';

create or replace function bugle.set_state(p_ids bigint[], p_state text, p_note text default null)
returns setof bugle.operated
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if p_state is null or p_state <> all (array['scheduled', 'ready', 'retrying', 'paused', 'completed', 'failed', 'cancelled']) then
    perform bugle.refuse('JB001', format('"p_state" must be a state a job can be put into, not %s', coalesce(bugle.quoted(p_state), 'null')),
      'One of scheduled, ready, retrying, paused, completed, failed, cancelled.');
  end if;
  return query select o.* from bugle.operate('set_state', p_ids, p_note, p_state => p_state) o;
end
$$;
comment on function bugle.set_state(bigint[], text, text) is 'Overrule: put a job that is not running or completed into a state. Recorded as such. For many at once; answers for each.';

create or replace function bugle.set_state_where(
  p_state text, p_queue text default null, p_command text default null, p_state_is text default null,
  p_older_than interval default null, p_error_like text default null, p_limit integer default 1000, p_note text default null)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if p_state is null or p_state <> all (array['scheduled', 'ready', 'retrying', 'paused', 'completed', 'failed', 'cancelled']) then
    perform bugle.refuse('JB001', format('"p_state" must be a state a job can be put into, not %s', coalesce(bugle.quoted(p_state), 'null')),
      'One of scheduled, ready, retrying, paused, completed, failed, cancelled.');
  end if;
  return (
    select count(*) filter (where o.done)
    from bugle.operate('set_state',
      bugle.matching('set_state', p_queue, p_command, p_state_is, p_older_than, p_error_like, p_limit), p_note, p_state => p_state) o);
end
$$;
comment on function bugle.set_state_where is 'Overrule: put a job that is not running or completed into a state. Recorded as such. For all that match; returns how many.';
