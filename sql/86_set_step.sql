-- operate, steps: an operator overrules what became of a step. Called by operators; recorded in bugle.changes.
--
-- A chain goes on with its first step that is neither done nor skipped, and passes over those behind it that are. So each step
-- can be set by itself: a later one that is done already is not run; an earlier one that is pending again is run once more,
-- and the others are not.

-- Where the step is that is meant: its place among the steps of the job.
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
    perform bugle.refuse('JB001', format('job %s has %s steps named %s: %s', p_job.id, cardinality(v_found), bugle.quoted(p_name),
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
  if p_state is null or p_state not in ('done', 'skipped', 'pending') then
    perform bugle.refuse('JB001', format('"p_state" must be done, skipped or pending, not %s', coalesce(bugle.quoted(p_state), 'null')),
      'done and skipped steps are passed over, a pending one is run.');
  end if;
  if p_output is not null and p_state <> 'done' then
    perform bugle.refuse('JB001', format('"p_output" is given for a step that is %s', p_state), 'Only a step that is done has put something out.');
  end if;
  if p_job.state in ('running', 'completed') then
    perform bugle.refuse('JB031', format('job %s: the steps of a job that is %s cannot be set', p_job.id, p_job.state),
      'Cancel it first, or wait until it has failed. Completed work is never run again.');
  end if;
  select r.* into v_record from bugle.step_records r where r.job = p_job.id and r.position = p_position;
  if not v_is_chains and v_record.job is null then
    perform bugle.refuse('JB001', format('job %s has no step %s', p_job.id, bugle.quoted(p_step)),
      coalesce('Its steps are: ' || nullif(concat_ws(', ', array_to_string(p_job.steps, ', '), (
        select string_agg(r.name, ', ' order by r.position)
        from bugle.step_records r where r.job = p_job.id and r.within is not null)), '') || '.', 'It has no steps at all.'));
  end if;

  insert into bugle.step_records as r (job, position, name, state, output)
  values (p_job.id, p_position, p_job.steps[p_position], p_state, p_output)
  on conflict (job, position) do update
  set state = excluded.state,
    output = excluded.output,
    updated_at = now();
  if v_is_chains then
    while exists (
      select from bugle.step_records r where r.job = p_job.id and r.position = v_step + 1 and r.within is null and r.state in ('done', 'skipped'))
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
  insert into bugle.changes (verb, job, step, from_state, to_state, note)
  values ('set_step', p_job.id, p_position, coalesce(v_record.state, 'pending'), p_state, left(p_note, 1000));
  if p_job.state = 'ready' then
    perform bugle.ring(p_job.queue); -- other workers may be able to run what is left now
  end if;
  return p_state;
end
$$;
comment on function bugle.overrule_step is 'Set the state of a step, or say why not.';

-- Lock a job wherever it is.
create or replace function bugle.lock_job(p_id bigint) returns bugle.jobs
language plpgsql
as $$
declare
  v_job bugle.jobs;
begin
  select j.* into v_job from bugle.jobs_live j where j.id = p_id for update;
  if not found then
    select j.* into v_job from bugle.jobs j where j.id = p_id for update;
  end if;
  if v_job.id is null then
    perform bugle.refuse('JB030', format('there is no job %s', p_id), 'It may have been removed, or dropped with its day of history.');
  end if;
  return v_job;
end
$$;
comment on function bugle.lock_job is 'Lock a job, alive or ended, or say that there is none.';

create or replace function bugle.set_step(
  p_id bigint, p_step integer, p_state text, p_output jsonb default null, p_note text default null)
returns text
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return bugle.overrule_step(bugle.lock_job(p_id), p_step, p_step::text, p_state, p_output, p_note);
end
$$;
comment on function bugle.set_step(bigint, integer, text, jsonb, text) is 'Overrule: set a step of a job that is not running or completed to done (with what it put out), skipped or pending, by its position. Returns its state now.';

create or replace function bugle.set_step(
  p_id bigint, p_step text, p_state text, p_output jsonb default null, p_note text default null)
returns text
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_job constant bugle.jobs := bugle.lock_job(p_id);
begin
  return bugle.overrule_step(v_job, bugle.step_position(v_job, p_step), p_step, p_state, p_output, p_note);
end
$$;
comment on function bugle.set_step(bigint, text, text, jsonb, text) is 'Overrule: set a step of a job that is not running or completed to done (with what it put out), skipped or pending, by its name. Returns its state now.';
