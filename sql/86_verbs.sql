-- verbs: what operators call. At the end: setting a step.
--
-- Each verb exists for one id (bugle.cancel(17)), and with p_family for its workflow and its children as one; for an
-- array of ids (bugle.cancel(array[17, 18])); and for a filter (bugle.cancel_where(p_queue => 'mail')). It hands over
-- to 85_operate.sql with the owner's rights. They differ in nothing but the verb and its own argument, so they are
-- created from a table: cancel, pause, resume, restart, remove, reschedule, set_priority, set_state.
do $do$
declare
  v_verb record;
  v_function record;
begin
  for v_verb in
    select v.name, v.comment, v.argument || ', ' as first, ', ' || v.option as last,
      regexp_replace(coalesce(v.argument, v.option), '^([a-z_]+).*', E', \\1 => \\1') as pass
    from (values
      ('cancel', null, null, 'Cancel a job. If it is running, its executor is stopped at once; a late completion is '
        'rejected.'),
      ('pause', null, null, 'Hold a job until it is resumed.'),
      ('resume', null, null, 'Let a paused job continue from where it was.'),
      ('restart', null, 'p_from_failed_step boolean default false', 'Run a failed or cancelled job again: same id, '
        'history kept, attempt from 0, from its first step or the one that failed. Completed work is never run again.'),
      ('remove', null, null, 'Delete a job that is not running, wherever it is.'),
      ('reschedule', 'p_run_at timestamptz', null, 'Change the time at which a job is due.'),
      ('set_priority', 'p_priority integer', null, 'Change a job''s priority: smaller values run first.'),
      ('set_state', 'p_to text', null, 'Overrule: put a job that is not running or completed into a state. '
        'Recorded as such.')) v (name, argument, option, comment)
  loop
    execute format($create$
create or replace function bugle.%1$s(
  p_id bigint, %2$s p_note text default null %3$s, p_family boolean default false)
returns text
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin return bugle.operate_one('%1$s', p_id, p_note %4$s, p_family => p_family); end $$;

create or replace function bugle.%1$s(p_ids bigint[], %2$s p_note text default null %3$s) returns setof bugle.operated
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin return query select o.* from bugle.operate('%1$s', p_ids, p_note %4$s) o; end $$;

create or replace function bugle.%1$s_where(
  %2$s p_queue text default null, p_command text default null, p_state text default null,
  p_since interval default null, p_ended_since interval default null, p_older_than interval default null,
  p_error_like text default null, p_code text default null, p_fingerprint text default null,
  p_reason text default null, p_worker bigint default null, p_limit integer default 1000,
  p_note text default null %3$s)
returns bigint
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin
  return bugle.operate_matching('%1$s', p_queue, p_command, p_state, p_since, p_ended_since, p_older_than,
    p_error_like, p_code, p_fingerprint, p_reason, p_worker, p_limit, p_note %4$s);
end $$;
$create$, v_verb.name, v_verb.first, v_verb.last, v_verb.pass);
    for v_function in
      select p.oid::regprocedure as signature, case p.prorettype
          when 'text'::regtype then v_verb.comment || ' Returns its state now.'
          when 'bigint'::regtype
            then format('bugle.%s for the jobs that match a filter. Returns how many.', v_verb.name)
          else format('bugle.%s for many jobs at once. Returns a row for each.', v_verb.name) end as comment
      from pg_proc p
      where p.pronamespace = 'bugle'::regnamespace
        and p.proname in (v_verb.name, v_verb.name || '_where')
    loop
      execute format('comment on function %s is %L', v_function.signature, v_function.comment);
    end loop;
  end loop;
end
$do$;

-- set_step: a chain continues with its first step that is neither done nor skipped, and skips later ones that are. So
-- each step can be set by itself: a later one that is done is not run; an earlier one that is set to pending is run
-- again, and the others are not.

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
  v_step integer;
begin
  if coalesce(p_state, '') not in ('done', 'skipped', 'pending') then
    perform bugle.refuse('JB001',
      format('"p_state" must be done, skipped or pending, not %s', coalesce(bugle.quoted(p_state), 'null')),
      'Steps that are done or skipped are not run; pending ones are.');
  elsif p_output is not null and p_state <> 'done' then
    perform bugle.refuse('JB001', format('"p_output" is given for a step that is %s', p_state),
      'Only a step that is done has an output.');
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
    v_step := bugle.steps_done(p_job.id, 0);
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
