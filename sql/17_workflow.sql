-- workflow: insert -> waiting, ready, scheduled. Jobs that start when others are done, enqueued in one call by everyone who may
-- enqueue, or by a running executor for its own job (45_wait.sql).
--
-- Ids are given along the graph, so a job always has a higher id than those it needs: what ends can lock what it starts in the
-- order of ids (42_dependants.sql). All is checked before anything is stored.

create or replace function bugle.refuse_workflow(p_name text, p_message text, p_hint text) returns void
language plpgsql
as $$
begin
  perform bugle.refuse('JB040', concat(format('job %s of the workflow: ', bugle.quoted(p_name)), p_message), p_hint);
end
$$;
comment on function bugle.refuse_workflow is 'Refuse a workflow, naming the job in it that is wrong.';

-- "x", 17, {"job": "x", "on_failure": "run"}: whom, by name or by id, and what to do if it fails.
create or replace function bugle.workflow_edges(p_names text[], p_specs jsonb[])
returns table (job integer, needs integer, needs_name text, needs_id bigint, policy text)
language plpgsql stable
-- how long an array is cannot be known to the planner, and a workflow may have ten thousand jobs
set enable_nestloop = off
as $$
declare
  v_bad record;
begin
  select p_names[s.number] as name, s.spec into v_bad
  from unnest(p_specs) with ordinality s (spec, number)
  where jsonb_typeof(s.spec -> 'after') <> 'array'
  order by s.number
  limit 1;
  if found then
    perform bugle.refuse_workflow(v_bad.name, format('"after" must be an array, not %s', bugle.quoted(v_bad.spec ->> 'after')),
      'For example "after": ["x"], or "after": [{"job": "x", "on_failure": "run"}], or "after": [17] for a job that is there.');
  end if;
  return query
  select e.job, n.number, n.name, e.needs_id, e.policy
  from (
    select s.number::integer as job,
      case when jsonb_typeof(a.value) = 'object' then a.value -> 'job' else a.value end as whom,
      case when jsonb_typeof(coalesce(a.value -> 'job', a.value)) = 'number' then (coalesce(a.value -> 'job', a.value) #>> '{}')::numeric end::bigint as needs_id,
      coalesce(a.value ->> 'on_failure', 'fail') as policy
    from unnest(p_specs) with ordinality s (spec, number)
      cross join lateral jsonb_array_elements(coalesce(s.spec -> 'after', '[]')) a) e
    left join (
      select m.name, m.number::integer as number
      from unnest(p_names) with ordinality m (name, number)) n
      on jsonb_typeof(e.whom) = 'string' and n.name = e.whom #>> '{}';
end
$$;
comment on function bugle.workflow_edges is 'Which jobs of a workflow need which, by their numbers, or by id those that are there already.';

create or replace function bugle.check_workflow(p_names text[], p_specs jsonb[]) returns void
language plpgsql stable
as $$
declare
  v_known constant text[] := array['command', 'payload', 'queue', 'priority', 'run_at', 'delay', 'deadline', 'timeout', 'max_attempts',
    'retry_policy', 'headers', 'unique_key', 'idempotency_key', 'idempotency_ttl', 'order_key', 'limit_key', 'fair_key', 'steps',
    'on_success', 'on_failure', 'after'];
  v_bad record;
begin
  select p_names[s.number] as name, s.spec into v_bad
  from unnest(p_specs) with ordinality s (spec, number)
  where jsonb_typeof(s.spec) <> 'object'
  order by s.number
  limit 1;
  if found then
    perform bugle.refuse_workflow(v_bad.name, format('it must be an object, not %s', bugle.quoted(v_bad.spec::text)),
      'For example {"command": "send_mail", "payload": {}, "after": ["x"]}.');
  end if;
  select p_names[s.number] as name, k.key into v_bad
  from unnest(p_specs) with ordinality s (spec, number)
    cross join lateral jsonb_object_keys(s.spec) k (key)
  where k.key <> all (v_known)
  order by s.number
  limit 1;
  if found then
    perform bugle.refuse_workflow(v_bad.name, format('there is no field %s', bugle.quoted(v_bad.key)),
      format('There are: %s.', array_to_string(v_known, ', ')));
  end if;
  select p_names[s.number] as name into v_bad
  from unnest(p_specs) with ordinality s (spec, number)
  where jsonb_typeof(s.spec -> 'command') is distinct from 'string'
  order by s.number
  limit 1;
  if found then
    perform bugle.refuse_workflow(v_bad.name, 'it has no command', 'Each job names what is to be done: {"command": "send_mail"}.');
  end if;
  select p_names[s.number] as name, a.value into v_bad
  from unnest(p_specs) with ordinality s (spec, number)
    cross join lateral jsonb_array_elements(case when jsonb_typeof(s.spec -> 'after') = 'array' then s.spec -> 'after' else '[]' end) a
    cross join lateral (select case when jsonb_typeof(a.value) = 'object' then a.value -> 'job' else a.value end as whom) w
  where jsonb_typeof(w.whom) is null
    or jsonb_typeof(w.whom) not in ('string', 'number')
    or (jsonb_typeof(w.whom) = 'number' and w.whom #>> '{}' !~ '^[0-9]{1,18}$')
    or (jsonb_typeof(a.value) = 'object' and (
      coalesce(a.value ->> 'on_failure', 'fail') not in ('fail', 'run')
      or exists (select from jsonb_object_keys(case when jsonb_typeof(a.value) = 'object' then a.value else '{}' end) k where k not in ('job', 'on_failure'))))
  order by s.number
  limit 1;
  if found then
    perform bugle.refuse_workflow(v_bad.name, format('"after" cannot be read: %s', bugle.quoted(v_bad.value::text)),
      'A name, an id, or {"job": name or id, "on_failure": "fail" or "run"}.');
  end if;
  select p_names[e.job] as name, e.needs, e.needs_id, count(*) as times,
    (select a.value from jsonb_array_elements(p_specs[e.job] -> 'after') a
      where not coalesce(a.value -> 'job', a.value) #>> '{}' = any (p_names) limit 1) as unknown
  into v_bad
  from bugle.workflow_edges(p_names, p_specs) e
  group by e.job, e.needs, e.needs_id
  having num_nulls(e.needs, e.needs_id) = 2 or count(*) > 1
  order by e.job
  limit 1;
  if found then
    if v_bad.needs is null and v_bad.needs_id is null then
      perform bugle.refuse_workflow(v_bad.name, format('it comes after %s, which is not in the workflow', bugle.quoted(v_bad.unknown #>> '{}')),
        'Jobs of the workflow are named as its "jobs" names them, others by their id, as a number.');
    end if;
    perform bugle.refuse_workflow(v_bad.name, format('it comes after %s more than once',
      coalesce(bugle.quoted(p_names[v_bad.needs]), v_bad.needs_id::text)), 'Name each job once in "after".');
  end if;
end
$$;
comment on function bugle.check_workflow is 'Refuse a workflow that cannot be read.';

-- The numbers of the jobs in an order in which each comes after those it needs. Arrays are changed in place, so it takes as long
-- as there are jobs and edges.
create or replace function bugle.workflow_order(p_names text[], p_job integer[], p_needs integer[]) returns integer[]
language plpgsql immutable
as $$
declare
  v_count constant integer := cardinality(p_names);
  v_open integer[] := array_fill(0, array[v_count]);
  v_last integer[] := array_fill(0, array[v_count]);
  v_before integer[] := array_fill(0, array[greatest(cardinality(p_job), 1)]);
  v_order integer[] := '{}';
  v_done integer := 0;
  v_edge integer;
  v_number integer;
  v_cycle integer[] := '{}';
begin
  for v_edge in reverse cardinality(p_job) .. 1 loop
    v_open[p_job[v_edge]] := v_open[p_job[v_edge]] + 1;
    v_before[v_edge] := v_last[p_needs[v_edge]];
    v_last[p_needs[v_edge]] := v_edge;
  end loop;
  for v_number in 1 .. v_count loop
    if v_open[v_number] = 0 then
      v_order := v_order || v_number;
    end if;
  end loop;
  while v_done < cardinality(v_order) loop
    v_done := v_done + 1;
    v_edge := v_last[v_order[v_done]];
    while v_edge > 0 loop
      v_open[p_job[v_edge]] := v_open[p_job[v_edge]] - 1;
      if v_open[p_job[v_edge]] = 0 then
        v_order := v_order || p_job[v_edge];
      end if;
      v_edge := v_before[v_edge];
    end loop;
  end loop;
  if v_done = v_count then
    return v_order;
  end if;

  -- Each of those left needs another that is left: going back along that must come round to one that was met before.
  v_number := array_position(array(select o > 0 from unnest(v_open) with ordinality u (o, place) order by u.place), true);
  while v_number <> all (v_cycle) loop
    v_cycle := v_cycle || v_number;
    select e.needs into v_number
    from unnest(p_job, p_needs) e (job, needs)
    where e.job = v_number
      and v_open[e.needs] > 0
    limit 1;
  end loop;
  v_cycle := v_cycle[array_position(v_cycle, v_number) :];
  perform bugle.refuse_workflow(p_names[v_number], format('it waits for itself: %s', (
      select string_agg(p_names[c.number], ' after ' order by c.place)
      from unnest(v_cycle[:20] || v_number) with ordinality c (number, place))),
    'Take one of these out of an "after".');
end
$$;
comment on function bugle.workflow_order is 'The jobs of a workflow, each after those it needs; or the cycle that makes it impossible.';

create or replace function bugle.enqueue_workflow(p_workflow jsonb) returns table (name text, id bigint)
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if jsonb_typeof(p_workflow -> 'jobs') is distinct from 'object' or p_workflow - 'jobs' <> '{}' or p_workflow -> 'jobs' = '{}' then
    perform bugle.refuse('JB040', 'a workflow must be an object with "jobs", an object of named jobs, and nothing else',
      'For example {"jobs": {"x": {"command": "fetch"}, "y": {"command": "report", "after": ["x"]}}}.');
  end if;
  return query
  select p.name, p.id from bugle.insert_jobs(p_workflow -> 'jobs', null) p order by p.id;
end
$$;
comment on function bugle.enqueue_workflow is 'Enqueue jobs that start when others are done, all or none: {"jobs": {"x": {"command": …}, "y": {"command": …, "after": ["x"]}}}. Returns the name and id of each.';

create or replace function bugle.enqueue_job(p_job jsonb) returns bigint
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return (select p.id from bugle.insert_jobs(jsonb_build_array(p_job), null) p);
end
$$;
comment on function bugle.enqueue_job is 'Enqueue one job as workflows spell it, after jobs that are there: {"command": …, "after": [17, {"job": 18, "on_failure": "run"}]}. Returns its id.';

create or replace function bugle.enqueue_after(
  p_after bigint[],
  p_command text,
  p_payload jsonb default '{}',
  p_on_failure text default 'fail',
  p_columns jsonb default '{}')
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return bugle.enqueue_job(
    coalesce(p_columns, '{}') || jsonb_build_object('command', p_command, 'payload', coalesce(p_payload, '{}'), 'after', (
      select coalesce(jsonb_agg(distinct jsonb_build_object('job', a.id, 'on_failure', coalesce(p_on_failure, 'fail'))), '[]')
      from unnest(p_after) a (id))));
end
$$;
comment on function bugle.enqueue_after is 'Enqueue a job that starts when these jobs are done; further columns as JSON. Right also if they end at this moment, or have ended.';

create or replace function bugle.workflow(p_job bigint)
returns table (name text, id bigint, command text, state text, reason text, after text[])
language plpgsql stable
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return query
  select w.name, w.job, j.command, coalesce(j.state, 'gone'), j.reason, array(
    select coalesce(d.name, d.needs::text) from bugle.dependencies d where d.job = w.job and not d.child order by 1)
  from bugle.workflow_jobs m
    join bugle.workflow_jobs w on w.workflow = m.workflow
    left join lateral bugle.job(w.job) j on true
  where m.job = p_job
  order by w.job;
end
$$;
comment on function bugle.workflow is 'All jobs of the workflow that a job belongs to: their names, states, and what each comes after.';

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
        -- seed: dependants_do_not_wait
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
    select (v_ids[e.job], 'failed', 'dependency_failed', null, bugle.dependency_error(min(e.needs_id)), 'dependency_failed')::bugle.ending
    from unnest(v_edge_jobs, v_edge_ids, v_edge_policies) e (job, needs_id, policy)
    where e.policy = 'fail'
      and v_needs_states[array_position(v_needed, e.needs_id)] <> 'completed'
    group by e.job));
  return query
  select case when jsonb_typeof(p_jobs) = 'object' then n.name end, n.id from unnest(v_names, v_ids) n (name, id);
end
$$;
comment on function bugle.insert_jobs is 'Store new jobs, by name or in an array, each waiting for those it comes after; as children of a job, if one is given.';
