-- workflow: insert -> waiting, ready, scheduled. Jobs that start when others are done, enqueued in one call by everyone who may
-- enqueue, or by a running executor for its own job (44_spawn.sql).
--
-- Ids are given along the graph, so a job always has a higher id than those it needs: what ends can lock what it starts in the
-- order of ids (42_follow.sql). All is checked before anything is stored.

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
