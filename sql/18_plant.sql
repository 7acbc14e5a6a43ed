-- plant: what bugle.enqueue_workflow, bugle.enqueue_after and bugle.spawn have in common: store jobs that wait for others.

-- Jobs that are there already, locked until we commit: each has ended, or will meet what we attach to it when it ends.
create or replace function bugle.lock_dependencies(p_ids bigint[])
returns table (id bigint, state text, reason text, result jsonb, error text, live boolean)
language plpgsql
set enable_seqscan = off
set jit = off
as $$
declare
  v_live bigint[];
  v_missing bigint;
begin
  if p_ids = '{}' then
    return;
  end if;
  perform bugle.lock_jobs(p_ids);
  v_live := array(
    select j.id
    from bugle.jobs_live j
    where j.id = any (p_ids)
    order by j.id
    for update);
  update bugle.jobs_live j set watched = true where j.id = any (v_live) and j.watched is not true;
  return query
  select i.id, null::text, null::text, null::jsonb, null::text, true from unnest(v_live) i (id);
  return query
  select j.id, j.state, j.reason, j.result, j.last_error, false
  from bugle.jobs j
  where j.id = any (p_ids)
    and j.state in ('completed', 'failed', 'cancelled');
  select i.id into v_missing
  from unnest(p_ids) i (id)
  where i.id <> all (v_live)
    and not exists (select from bugle.jobs j where j.id = i.id);
  if found then
    -- where completed jobs are not kept, one that is not there has been completed
    if (select s.keep_completed from bugle.settings s) or v_missing > pg_sequence_last_value('bugle.job_ids') then
      perform bugle.refuse('JB030', format('there is no job %s', v_missing), 'It may have been removed, or dropped with its day of history.');
    end if;
    return query
    select i.id, 'completed', null::text, null::jsonb, null::text, false
    from unnest(p_ids) i (id)
    where i.id <> all (v_live)
      and not exists (select from bugle.jobs j where j.id = i.id);
  end if;
end
$$;
comment on function bugle.lock_dependencies is 'Jobs that others are to wait for: live ones, which will tell when they end, and how the others ended.';

-- A job as its JSON says, with the checks and the template of any other new job.
create or replace function bugle.job_from_json(p_spec jsonb, p_id bigint) returns bugle.jobs_live
language plpgsql
as $$
declare
  v_job bugle.jobs_live;
begin
  v_job := jsonb_populate_record(null::bugle.jobs_live, jsonb_strip_nulls(p_spec - 'payload' - 'headers' - 'after' - 'delay'));
  v_job.id := p_id;
  v_job.state := 'ready';
  v_job.payload := coalesce(p_spec -> 'payload', '{}');
  v_job.headers := nullif(p_spec -> 'headers', 'null');
  v_job.queue := coalesce(v_job.queue, 'default');
  v_job.priority := coalesce(v_job.priority, 0);
  v_job.run_at := coalesce(v_job.run_at, now() + (p_spec ->> 'delay')::interval, now());
  v_job.attempt := 0;
  v_job.crashes := 0;
  v_job.claim := 0;
  v_job.created_at := now();
  v_job.updated_at := now();
  return bugle.validate_job(v_job);
end
$$;
comment on function bugle.job_from_json is 'A new job from JSON, checked and with its template, not stored yet.';

create or replace function bugle.insert_jobs(p_jobs jsonb, p_parent bigint) returns table (name text, id bigint)
language plpgsql
set jit = off
as $$
declare
  v_names text[];
  v_specs jsonb[];
  v_edge_jobs integer[];
  v_edge_needs integer[];
  v_edge_names text[];
  v_edge_ids bigint[];
  v_edge_policies text[];
  v_ids bigint[];
  v_number integer;
  v_waits integer[];
  v_watched boolean[];
  v_needed bigint[];
  v_needs_live boolean[];
  v_needs_states text[];
  v_job bugle.jobs_live;
  v_jobs bugle.jobs_live[] := '{}';
  v_hint text;
  v_edge integer;
begin
  -- an array has no names: its jobs are called by their place
  if jsonb_typeof(p_jobs) = 'array' then
    select array_agg(j.place::text order by j.place), array_agg(j.spec order by j.place) into v_names, v_specs
    from jsonb_array_elements(p_jobs) with ordinality j (spec, place);
  else
    select array_agg(j.key order by j.place), array_agg(j.spec order by j.place) into v_names, v_specs
    from jsonb_each(p_jobs) with ordinality j (key, spec, place);
  end if;
  perform bugle.check_workflow(v_names, v_specs);
  select coalesce(array_agg(e.job), '{}'), coalesce(array_agg(e.needs), '{}'), array_agg(e.needs_name), coalesce(array_agg(e.needs_id), '{}'),
    array_agg(e.policy)
  into v_edge_jobs, v_edge_needs, v_edge_names, v_edge_ids, v_edge_policies
  from bugle.workflow_edges(v_names, v_specs) e;

  v_ids := array_fill(null::bigint, array[cardinality(v_names)]);
  foreach v_number in array bugle.workflow_order(v_names,
    array(select e.job from unnest(v_edge_jobs, v_edge_needs) e (job, needs) where e.needs is not null),
    array(select e.needs from unnest(v_edge_jobs, v_edge_needs) e (job, needs) where e.needs is not null))
  loop
    v_ids[v_number] := nextval('bugle.job_ids');
  end loop;

  -- what is there already, and what came of it
  select coalesce(array_agg(n.id), '{}'), array_agg(n.live), array_agg(n.state) into v_needed, v_needs_live, v_needs_states
  from bugle.lock_dependencies(array(select distinct i from unnest(v_edge_ids) i where i is not null)) n;
  v_waits := array_fill(0, array[cardinality(v_names)]);
  v_watched := array_fill(p_parent is not null, array[cardinality(v_names)]);
  for v_edge in 1 .. cardinality(v_edge_jobs) loop
    if v_edge_needs[v_edge] is not null then
      v_watched[v_edge_needs[v_edge]] := true;
      v_waits[v_edge_jobs[v_edge]] := v_waits[v_edge_jobs[v_edge]] + 1;
    elsif v_needs_live[array_position(v_needed, v_edge_ids[v_edge])] then
      v_waits[v_edge_jobs[v_edge]] := v_waits[v_edge_jobs[v_edge]] + 1;
    end if;
  end loop;

  -- these are the owner's rights: the checks must not be switched off by whoever calls
  perform set_config('bugle.skip_checks', '', true);
  begin
    for v_place in 1 .. cardinality(v_names) loop
      v_number := v_place; -- outlives the loop, for the message below
      v_job := bugle.job_from_json(v_specs[v_number], v_ids[v_number]);
      v_job.parent := p_parent;
      v_job.watched := nullif(v_watched[v_number] or coalesce(v_job.watched, false), false);
      if v_waits[v_number] > 0 then
        v_job.state := 'waiting';
        v_job.outstanding := v_waits[v_number];
      end if;
      v_jobs := v_jobs || v_job;
    end loop;
  exception when others then
    get stacked diagnostics v_hint = pg_exception_hint;
    raise exception using errcode = sqlstate, message = format('job %s of the workflow: %s', bugle.quoted(v_names[v_number]), sqlerrm),
      hint = case when v_hint = '' then 'Each field is what the column of bugle.jobs takes.' else v_hint end;
  end;
  perform set_config('bugle.skip_checks', 'on', true);
  -- the trigger keeps their idempotency keys, in this order: two workflows with the same keys do not block each other
  insert into bugle.jobs_live overriding system value select j.* from unnest(v_jobs) j order by j.command, j.idempotency_key;
  perform set_config('bugle.skip_checks', '', true);

  insert into bugle.dependencies (job, needs, name, on_failure)
  select v_ids[e.job], v_ids[e.needs], case when jsonb_typeof(p_jobs) = 'object' then e.name end, e.policy
  from unnest(v_edge_jobs, v_edge_needs, v_edge_names, v_edge_policies) e (job, needs, name, policy)
  where e.needs is not null;
  insert into bugle.dependencies (job, needs, on_failure, state, reason, result, error, ended_at)
  select v_ids[e.job], n.id, e.policy, n.state, n.reason, n.result, n.error, case when n.state is not null then now() end
  from unnest(v_edge_jobs, v_edge_ids, v_edge_policies) e (job, needs_id, policy)
    join bugle.lock_dependencies(v_needed) n on n.id = e.needs_id;
  if jsonb_typeof(p_jobs) = 'object' then
    insert into bugle.workflow_jobs (job, workflow, name)
    select n.id, min(n.id) over (), n.name from unnest(v_ids, v_names) n (id, name);
  end if;
  if p_parent is not null then
    insert into bugle.dependencies (job, needs, name, on_failure, child)
    select p_parent, n.id, case when jsonb_typeof(p_jobs) = 'object' then n.name end, 'run', true from unnest(v_ids, v_names) n (id, name);
    update bugle.jobs_live j
    set state = 'waiting', outstanding = cardinality(v_ids), answer = null, answer_by = null, answer_token = null, updated_at = now()
    where j.id = p_parent;
    perform bugle.release(array[p_parent]);
  end if;

  perform bugle.ring(q.queue) from (select distinct j.queue from unnest(v_jobs) j where j.state = 'ready') q;
  -- what came too late to wait for a job that failed
  perform bugle.end_jobs(array(
    select (v_ids[e.job], 'failed', 'dependency_failed', null, bugle.needed_in_vain(min(e.needs_id)), 'dependency_failed')::bugle.ending
    from unnest(v_edge_jobs, v_edge_ids, v_edge_policies) e (job, needs_id, policy)
    where e.policy = 'fail'
      and v_needs_states[array_position(v_needed, e.needs_id)] <> 'completed'
    group by e.job));
  return query
  select case when jsonb_typeof(p_jobs) = 'object' then n.name end, n.id from unnest(v_names, v_ids) n (name, id);
end
$$;
comment on function bugle.insert_jobs is 'Store new jobs, by name or in an array, each waiting for those it comes after; as children of a job, if one is given.';

drop function if exists bugle.take_keys(bugle.jobs_live[]);
