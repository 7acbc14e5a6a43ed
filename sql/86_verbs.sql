-- verbs: what operators call. Each exists for one id, for an array of ids and for a filter, and hands over to
-- 85_operate.sql with the owner's rights. At the end: setting a step.

create or replace function bugle.cancel(p_id bigint, p_note text default null) returns text
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin return bugle.operate_one('cancel', p_id, p_note); end $$;
comment on function bugle.cancel(bigint, text) is
  'Cancel a job. If it runs, its worker is told at once and its executor stopped; a late completion is rejected. '
  'Returns its state now.';

create or replace function bugle.cancel(p_ids bigint[], p_note text default null) returns setof bugle.operated
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin return query select o.* from bugle.operate('cancel', p_ids, p_note) o; end $$;
comment on function bugle.cancel(bigint[], text) is 'bugle.cancel for many jobs at once. Returns a row for each.';

create or replace function bugle.cancel_where(
  p_queue text default null, p_command text default null, p_state_is text default null,
  p_older_than interval default null, p_error_like text default null, p_limit integer default 1000,
  p_note text default null)
returns bigint
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin
  return bugle.operate_matching('cancel', p_queue, p_command, p_state_is, p_older_than, p_error_like, p_limit, p_note);
end $$;
comment on function bugle.cancel_where is 'bugle.cancel for the jobs that match a filter. Returns how many.';

create or replace function bugle.pause(p_id bigint, p_note text default null) returns text
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin return bugle.operate_one('pause', p_id, p_note); end $$;
comment on function bugle.pause(bigint, text) is 'Hold a job back until it is resumed. Returns its state now.';

create or replace function bugle.pause(p_ids bigint[], p_note text default null) returns setof bugle.operated
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin return query select o.* from bugle.operate('pause', p_ids, p_note) o; end $$;
comment on function bugle.pause(bigint[], text) is 'bugle.pause for many jobs at once. Returns a row for each.';

create or replace function bugle.pause_where(
  p_queue text default null, p_command text default null, p_state_is text default null,
  p_older_than interval default null, p_error_like text default null, p_limit integer default 1000,
  p_note text default null)
returns bigint
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin
  return bugle.operate_matching('pause', p_queue, p_command, p_state_is, p_older_than, p_error_like, p_limit, p_note);
end $$;
comment on function bugle.pause_where is 'bugle.pause for the jobs that match a filter. Returns how many.';

create or replace function bugle.resume(p_id bigint, p_note text default null) returns text
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin return bugle.operate_one('resume', p_id, p_note); end $$;
comment on function bugle.resume(bigint, text) is 'Let a paused job continue from where it was. Returns its state now.';

create or replace function bugle.resume(p_ids bigint[], p_note text default null) returns setof bugle.operated
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin return query select o.* from bugle.operate('resume', p_ids, p_note) o; end $$;
comment on function bugle.resume(bigint[], text) is 'bugle.resume for many jobs at once. Returns a row for each.';

create or replace function bugle.resume_where(
  p_queue text default null, p_command text default null, p_state_is text default null,
  p_older_than interval default null, p_error_like text default null, p_limit integer default 1000,
  p_note text default null)
returns bigint
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin
  return bugle.operate_matching('resume', p_queue, p_command, p_state_is, p_older_than, p_error_like, p_limit, p_note);
end $$;
comment on function bugle.resume_where is 'bugle.resume for the jobs that match a filter. Returns how many.';

create or replace function bugle.restart(
  p_id bigint, p_note text default null, p_from_failed_step boolean default false)
returns text
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin return bugle.operate_one('restart', p_id, p_note, p_from_failed_step => p_from_failed_step); end $$;
comment on function bugle.restart(bigint, text, boolean) is
  'Run a failed or cancelled job again: same id, history kept, attempt from 0, from its first step or the one that '
  'failed. Completed work is never run again. Returns its state now.';

create or replace function bugle.restart(
  p_ids bigint[], p_note text default null, p_from_failed_step boolean default false)
returns setof bugle.operated
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin
  return query select o.* from bugle.operate('restart', p_ids, p_note, p_from_failed_step => p_from_failed_step) o;
end $$;
comment on function bugle.restart(bigint[], text, boolean) is
  'bugle.restart for many jobs at once. Returns a row for each.';

create or replace function bugle.restart_where(
  p_queue text default null, p_command text default null, p_state_is text default null,
  p_older_than interval default null, p_error_like text default null, p_limit integer default 1000,
  p_note text default null, p_from_failed_step boolean default false)
returns bigint
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin
  return bugle.operate_matching('restart', p_queue, p_command, p_state_is, p_older_than, p_error_like, p_limit, p_note,
    p_from_failed_step => p_from_failed_step);
end $$;
comment on function bugle.restart_where is 'bugle.restart for the jobs that match a filter. Returns how many.';

create or replace function bugle.remove(p_id bigint, p_note text default null) returns text
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin return bugle.operate_one('remove', p_id, p_note); end $$;
comment on function bugle.remove(bigint, text) is
  'Delete a job that is not running, wherever it is. Returns "removed".';

create or replace function bugle.remove(p_ids bigint[], p_note text default null) returns setof bugle.operated
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin return query select o.* from bugle.operate('remove', p_ids, p_note) o; end $$;
comment on function bugle.remove(bigint[], text) is 'bugle.remove for many jobs at once. Returns a row for each.';

create or replace function bugle.remove_where(
  p_queue text default null, p_command text default null, p_state_is text default null,
  p_older_than interval default null, p_error_like text default null, p_limit integer default 1000,
  p_note text default null)
returns bigint
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin
  return bugle.operate_matching('remove', p_queue, p_command, p_state_is, p_older_than, p_error_like, p_limit, p_note);
end $$;
comment on function bugle.remove_where is 'bugle.remove for the jobs that match a filter. Returns how many.';

create or replace function bugle.reschedule(p_id bigint, p_run_at timestamptz, p_note text default null) returns text
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin return bugle.operate_one('reschedule', p_id, p_note, p_run_at => p_run_at); end $$;
comment on function bugle.reschedule(bigint, timestamptz, text) is
  'Change the time at which a job is due. Returns its state now.';

create or replace function bugle.reschedule(p_ids bigint[], p_run_at timestamptz, p_note text default null)
returns setof bugle.operated
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin return query select o.* from bugle.operate('reschedule', p_ids, p_note, p_run_at => p_run_at) o; end $$;
comment on function bugle.reschedule(bigint[], timestamptz, text) is
  'bugle.reschedule for many jobs at once. Returns a row for each.';

create or replace function bugle.reschedule_where(
  p_run_at timestamptz, p_queue text default null, p_command text default null, p_state_is text default null,
  p_older_than interval default null, p_error_like text default null, p_limit integer default 1000,
  p_note text default null)
returns bigint
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin
  return bugle.operate_matching(
    'reschedule', p_queue, p_command, p_state_is, p_older_than, p_error_like, p_limit, p_note,
    p_run_at => p_run_at);
end $$;
comment on function bugle.reschedule_where is 'bugle.reschedule for the jobs that match a filter. Returns how many.';

create or replace function bugle.set_priority(p_id bigint, p_priority integer, p_note text default null) returns text
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin return bugle.operate_one('set_priority', p_id, p_note, p_priority => p_priority); end $$;
comment on function bugle.set_priority(bigint, integer, text) is
  'Change a job''s priority: smaller runs sooner. Returns its state now.';

create or replace function bugle.set_priority(p_ids bigint[], p_priority integer, p_note text default null)
returns setof bugle.operated
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin
  return query select o.* from bugle.operate('set_priority', p_ids, p_note, p_priority => p_priority) o;
end $$;
comment on function bugle.set_priority(bigint[], integer, text) is
  'bugle.set_priority for many jobs at once. Returns a row for each.';

create or replace function bugle.set_priority_where(
  p_priority integer, p_queue text default null, p_command text default null, p_state_is text default null,
  p_older_than interval default null, p_error_like text default null, p_limit integer default 1000,
  p_note text default null)
returns bigint
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin
  return bugle.operate_matching(
    'set_priority', p_queue, p_command, p_state_is, p_older_than, p_error_like, p_limit, p_note,
    p_priority => p_priority);
end $$;
comment on function bugle.set_priority_where is
  'bugle.set_priority for the jobs that match a filter. Returns how many.';

create or replace function bugle.set_state(p_id bigint, p_state text, p_note text default null) returns text
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin return bugle.operate_one('set_state', p_id, p_note, p_state => p_state); end $$;
comment on function bugle.set_state(bigint, text, text) is
  'Overrule: put a job that is not running or completed into a state. Recorded as such. Returns its state now.';

create or replace function bugle.set_state(p_ids bigint[], p_state text, p_note text default null)
returns setof bugle.operated
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin return query select o.* from bugle.operate('set_state', p_ids, p_note, p_state => p_state) o; end $$;
comment on function bugle.set_state(bigint[], text, text) is
  'bugle.set_state for many jobs at once. Returns a row for each.';

create or replace function bugle.set_state_where(
  p_state text, p_queue text default null, p_command text default null, p_state_is text default null,
  p_older_than interval default null, p_error_like text default null, p_limit integer default 1000,
  p_note text default null)
returns bigint
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin
  return bugle.operate_matching(
    'set_state', p_queue, p_command, p_state_is, p_older_than, p_error_like, p_limit, p_note,
    p_state => p_state);
end $$;
comment on function bugle.set_state_where is 'bugle.set_state for the jobs that match a filter. Returns how many.';

-- set_step: a chain goes on with its first step that is neither done nor skipped, and passes over those behind it that
-- are. So each step can be set by itself: a later one that is done already is not run; an earlier one that is pending
-- again is run once more, and the others are not.

create or replace function bugle.step_position(p_job bugle.jobs, p_name text) returns integer
language plpgsql stable
as $$
declare
  v_found integer[];
begin
  v_found := array_positions(p_job.steps, p_name) || array(
    select r.position
    from bugle.step_records r
    where r.job = p_job.id
      and r.within is not null
      and r.name = p_name
    order by r.position);
  if cardinality(v_found) > 1 then
    perform bugle.refuse('JB001',
      format('job %s has %s steps named %s: %s', p_job.id, cardinality(v_found), bugle.quoted(p_name),
        array_to_string(v_found, ', ')), 'Give the position instead of the name.');
  end if;
  return v_found[1];
end
$$;
comment on function bugle.step_position is 'The position of a step by its name, if there is one and only one.';

create or replace function bugle.overrule_step(
  p_job bugle.jobs, p_position integer, p_step text, p_state text, p_output jsonb, p_note text)
returns text
language plpgsql
as $$
declare
  v_is_chains constant boolean := coalesce(p_position between 1 and cardinality(p_job.steps), false);
  v_record bugle.step_records;
  v_context jsonb := p_job.context;
  v_step integer := 0;
begin
  if coalesce(p_state, '') not in ('done', 'skipped', 'pending') then
    perform bugle.refuse('JB001',
      format('"p_state" must be done, skipped or pending, not %s', coalesce(bugle.quoted(p_state), 'null')),
      'done and skipped steps are passed over, a pending one is run.');
  elsif p_output is not null and p_state <> 'done' then
    perform bugle.refuse('JB001', format('"p_output" is given for a step that is %s', p_state),
      'Only a step that is done has put something out.');
  elsif p_job.state in ('running', 'completed') then
    perform bugle.refuse('JB031',
      format('job %s: the steps of a job that is %s cannot be set', p_job.id, p_job.state),
      'Cancel it first, or wait until it has failed. Completed work is never run again.');
  end if;
  select r.* into v_record from bugle.step_records r where r.job = p_job.id and r.position = p_position;
  if not v_is_chains and v_record.job is null then
    perform bugle.refuse('JB001', format('job %s has no step %s', p_job.id, bugle.quoted(p_step)),
      coalesce('Its steps are: ' || nullif(concat_ws(', ', array_to_string(p_job.steps, ', '), (
        select string_agg(r.name, ', ' order by r.position)
        from bugle.step_records r
        where r.job = p_job.id
          and r.within is not null)), '') || '.', 'It has no steps at all.'));
  end if;

  insert into bugle.step_records as r (job, position, name, state, output)
  values (p_job.id, p_position, p_job.steps[p_position], p_state, p_output)
  on conflict (job, position) do update
  set state = excluded.state,
    output = excluded.output,
    updated_at = now();
  if v_is_chains then
    while exists (
      select
      from bugle.step_records r
      where r.job = p_job.id
        and r.position = v_step + 1
        and r.within is null
        and r.state in ('done', 'skipped'))
    loop
      v_step := v_step + 1;
    end loop;
    if v_step = cardinality(p_job.steps) then
      perform bugle.refuse('JB031', format('job %s would have nothing left to do', p_job.id),
        format('select bugle.set_state(%s, ''completed''); ends it.', p_job.id));
    end if;
    if p_state = 'done' then
      v_context := bugle.merged(p_job.context, p_job.steps[p_position], p_output);
    end if;
    update bugle.jobs j
    set step = v_step,
      context = v_context,
      updated_at = now()
    where j.id = p_job.id
      and j.state = p_job.state;
  end if;
  perform bugle.record_change('set_step', p_job.id, coalesce(v_record.state, 'pending'), p_state, p_note,
    p_step => p_position);
  if p_job.state = 'ready' then
    perform bugle.ring(p_job.queue); -- other workers may be able to run what is left now
  end if;
  return p_state;
end
$$;
comment on function bugle.overrule_step is 'Set the state of a step, or say why not.';

create or replace function bugle.set_step(
  p_id bigint, p_step integer, p_state text, p_output jsonb default null, p_note text default null)
returns text
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return bugle.overrule_step(bugle.lock_job(p_id), p_step, p_step::text, p_state, p_output, p_note);
end
$$;
comment on function bugle.set_step(bigint, integer, text, jsonb, text) is
  'Overrule: set a step of a job that is not running or completed to done (with its output), skipped or pending, by '
  'its position. Returns its state now.';

create or replace function bugle.set_step(
  p_id bigint, p_step text, p_state text, p_output jsonb default null, p_note text default null)
returns text
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_job constant bugle.jobs := bugle.lock_job(p_id);
begin
  return bugle.overrule_step(v_job, bugle.step_position(v_job, p_step), p_step, p_state, p_output, p_note);
end
$$;
comment on function bugle.set_step(bigint, text, text, jsonb, text) is 'The same by the name of the step.';
