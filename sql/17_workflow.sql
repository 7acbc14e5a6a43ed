-- workflow: insert -> waiting, ready, scheduled. Jobs that start when others are done, enqueued in one call by every
-- role that may enqueue, or by a running executor for its own job (bugle.spawn).
--
-- A workflow is a JSON object: name -> job. The functions below number its jobs in the order of jsonb_each. Ids follow
-- the graph: a job always has a higher id than those it needs, so an outcome can lock the jobs it starts in the order
-- of ids (42_dependants.sql). Everything is checked before a job is stored.

create or replace function bugle.enqueue_workflow(p_workflow jsonb) returns table (name text, id bigint)
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if jsonb_typeof(p_workflow -> 'jobs') is distinct from 'object' or p_workflow - 'jobs' <> '{}'
    or p_workflow -> 'jobs' = '{}'
  then
    perform bugle.refuse('JB040', 'a workflow must be an object with "jobs", an object of named jobs, and nothing else',
      'For example {"jobs": {"x": {"command": "fetch"}, "y": {"command": "report", "after": ["x"]}}}.');
  end if;
  return query
  select p.name, p.id from bugle.insert_jobs(p_workflow -> 'jobs', null) p order by p.id;
end
$$;
comment on function bugle.enqueue_workflow is
  'Enqueue jobs that start when others are done, all or none: '
  '{"jobs": {"x": {"command": …}, "y": {"command": …, "after": ["x"]}}}. Returns the name and id of each.';

-- A job that comes after no other is an ordinary one: a key that it repeats is answered with the existing job.
create or replace function bugle.enqueue_job(p_job jsonb) returns bigint
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_job bugle.jobs_live;
begin
  if jsonb_typeof(p_job) = 'object' and coalesce(nullif(p_job -> 'after', 'null'), '[]') <> '[]' then
    return (select p.id from bugle.insert_jobs(jsonb_build_array(p_job), null) p);
  end if;
  v_job := bugle.columns_from_json(case when jsonb_typeof(p_job) = 'object' then p_job - 'on_conflict' else p_job end);
  return (
    select e.id
    from bugle.enqueue_once(v_job.command, v_job.payload, v_job.queue, v_job.priority, v_job.run_at, v_job.deadline,
      v_job.timeout, v_job.max_attempts, v_job.retry_policy, v_job.headers, v_job.unique_key,
      p_job ->> 'on_conflict', v_job.idempotency_key, v_job.idempotency_ttl, v_job.order_key, v_job.limit_key,
      v_job.fair_key, v_job.steps, v_job.on_success, v_job.on_failure, v_job.retry_delay) e);
end
$$;
comment on function bugle.enqueue_job is
  'Enqueue one job given as JSON, optionally after existing jobs: {"command": …, "after": [17]}. Returns its id, or '
  'that of the job with its key; with "after", a taken key is an error (23505).';

create or replace function bugle.enqueue_after(
  p_after bigint[],
  p_command text,
  p_payload jsonb default '{}',
  p_on_failure text default 'fail',
  p_columns jsonb default '{}')
returns bigint
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return bugle.enqueue_job(coalesce(p_columns, '{}') || jsonb_build_object(
    'command', p_command,
    'payload', coalesce(p_payload, '{}'),
    'after', (
      select coalesce(jsonb_agg(jsonb_build_object('job', a.id, 'on_failure', coalesce(p_on_failure, 'fail'))), '[]')
      from (select distinct u.id from unnest(p_after) u (id)) a)));
end
$$;
comment on function bugle.enqueue_after is
  'Enqueue a job that starts when these jobs are done; further columns as JSON. '
  'The jobs may have ended, or be ending at this moment.';

create or replace function bugle.workflow(p_job bigint)
returns table (name text, id bigint, command text, state text, reason text, after text[])
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
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
comment on function bugle.workflow is
  'All jobs of the workflow that a job belongs to: their names, states, and what each comes after.';

create or replace function bugle.family(p_id bigint) returns bigint[]
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off set jit = off
as $$
begin
  return array(
    with recursive family (job) as (
      select f.job
      from (
        select p_id as job
        union
        select w.job
        from bugle.workflow_jobs m
          join bugle.workflow_jobs w on w.workflow = m.workflow
        where m.job = p_id) f
      union
      select c.needs
      from family f
        cross join lateral (
          select d.needs from bugle.dependencies d where d.job = f.job and d.child offset 0) c
    )
    select f.job from family f order by f.job);
end
$$;
comment on function bugle.family is
  'A job, all jobs of the workflow it belongs to, and their children, and theirs: bugle.cancel(bugle.family(17)).';

create or replace function bugle.refuse_workflow(p_name text, p_message text, p_hint text) returns boolean
language plpgsql
as $$
begin
  return bugle.refuse('JB040', format('job %s of the workflow: %s', bugle.quoted(p_name), p_message), p_hint);
end
$$;
comment on function bugle.refuse_workflow is 'Reject a workflow, naming the job at fault.';

-- An edge is spelled "x", 17 or {"job": "x", "on_failure": "run"}: which job is needed, by name or by id, and what to
-- do if it fails. No nested loops: the planner does not know that a workflow may have ten thousand jobs, and would
-- compare each edge with each name.
create or replace function bugle.workflow_edges(p_jobs jsonb) returns setof bugle.workflow_edge
language plpgsql stable set enable_nestloop = off
as $$
begin
  return query
  select e.job, e.name, e.spelled, e.is_valid, n.number, n.name,
    case when e.is_valid and jsonb_typeof(e.needs) = 'number' then (e.needs #>> '{}')::bigint end, e.policy
  from (
    select j.number::integer as job, j.name, a.value as spelled, w.needs,
      coalesce(a.value ->> 'on_failure', 'fail') as policy,
      coalesce(jsonb_typeof(w.needs) = 'string' or w.needs::text ~ '^[0-9]{1,18}$', false)
        and coalesce(a.value ->> 'on_failure', 'fail') in ('fail', 'run')
        and (jsonb_typeof(a.value) <> 'object' or a.value - '{job,on_failure}'::text[] = '{}') as is_valid
    from jsonb_each(p_jobs) with ordinality j (name, spec, number)
      cross join lateral jsonb_array_elements(
        case jsonb_typeof(j.spec -> 'after') when 'array' then j.spec -> 'after' else '[]' end) a
      cross join lateral (
        select case jsonb_typeof(a.value) when 'object' then a.value -> 'job' else a.value end as needs) w) e
    left join (
      select j.name, j.number::integer as number
      from jsonb_each(p_jobs) with ordinality j (name, spec, number)) n
      on jsonb_typeof(e.needs) = 'string' and n.name = e.needs #>> '{}';
end
$$;
comment on function bugle.workflow_edges is
  'Which jobs of a workflow need which: those of the workflow by their number, others by their id.';

create or replace function bugle.check_edges(p_jobs jsonb, p_edges bugle.workflow_edge[]) returns void
language plpgsql stable
as $$
declare
  v_bad record;
begin
  select j.name, j.spec ->> 'after' as after into v_bad
  from jsonb_each(p_jobs) with ordinality j (name, spec, number)
  where jsonb_typeof(j.spec -> 'after') <> 'array'
  order by j.number
  limit 1;
  if found then
    perform bugle.refuse_workflow(v_bad.name, format('"after" must be an array, not %s', bugle.quoted(v_bad.after)),
      'For example "after": ["x"], or "after": [{"job": "x", "on_failure": "run"}], '
      'or "after": [17] for an existing job.');
  end if;

  select e.* into v_bad
  from (
    select w.*, count(*) over (partition by w.job, w.needs, w.needs_id) as times from unnest(p_edges) w) e
  where not e.is_valid
    or num_nulls(e.needs, e.needs_id) = 2
    or e.times > 1
  order by e.job
  limit 1;
  if found then
    perform case
      when not v_bad.is_valid then bugle.refuse_workflow(v_bad.name,
        format('invalid entry in "after": %s', bugle.quoted(v_bad.spelled::text)),
        'A name, an id, or {"job": name or id, "on_failure": "fail" or "run"}.')
      when num_nulls(v_bad.needs, v_bad.needs_id) = 2 then bugle.refuse_workflow(v_bad.name,
        format('it comes after %s, which is not in the workflow', bugle.quoted(v_bad.spelled #>> '{}')),
        'Name jobs of the workflow as its "jobs" does, and other jobs by their id, as a number.')
      else bugle.refuse_workflow(v_bad.name, format('it comes after %s more than once',
        coalesce(bugle.quoted(v_bad.needs_name), v_bad.needs_id::text)), 'Name each job once in "after".') end;
  end if;
end
$$;
comment on function bugle.check_edges is 'Reject a workflow with an invalid entry in "after".';

-- Kahn's algorithm. Arrays are changed in place, so it takes time in proportion to jobs and edges; a recursive query
-- would follow every path, and there can be exponentially many.
create or replace function bugle.workflow_ids(p_names text[], p_edges bugle.workflow_edge[]) returns bigint[]
language plpgsql
as $$
declare
  -- 0: no id yet. Not null, because an array that has ever contained a null is searched from its start (7 µs per
  -- element).
  v_ids bigint[] := array_fill(0::bigint, array[cardinality(p_names)]);
  -- the edges: job v_job[e] needs job v_needs[e]; v_last and v_before link those that need the same job
  v_job integer[];
  v_needs integer[];
  v_last integer[] := array_fill(0, array[cardinality(p_names)]);
  v_before integer[];
  -- how many jobs without an id each still needs, and the jobs that need none, in the order in which they get their ids
  v_open integer[] := array_fill(0, array[cardinality(p_names)]);
  v_order integer[] := '{}';
  v_done integer := 0;
  v_edge integer;
begin
  select coalesce(array_agg(e.job), '{}'), coalesce(array_agg(e.needs), '{}') into v_job, v_needs
  from unnest(p_edges) e
  where e.needs is not null;
  v_before := array_fill(0, array[cardinality(v_job)]);
  for v_edge in reverse cardinality(v_job) .. 1 loop
    v_open[v_job[v_edge]] := v_open[v_job[v_edge]] + 1;
    v_before[v_edge] := v_last[v_needs[v_edge]];
    v_last[v_needs[v_edge]] := v_edge;
  end loop;
  for v_number in 1 .. cardinality(p_names) loop
    if v_open[v_number] = 0 then
      v_order := v_order || v_number;
    end if;
  end loop;
  while v_done < cardinality(v_order) loop
    v_done := v_done + 1;
    v_ids[v_order[v_done]] := nextval('bugle.job_ids');
    v_edge := v_last[v_order[v_done]];
    while v_edge > 0 loop
      v_open[v_job[v_edge]] := v_open[v_job[v_edge]] - 1;
      if v_open[v_job[v_edge]] = 0 then
        v_order := v_order || v_job[v_edge];
      end if;
      v_edge := v_before[v_edge];
    end loop;
  end loop;
  if v_done < cardinality(p_names) then
    perform bugle.refuse_cycle(p_names, v_ids, v_job, v_needs);
  end if;
  return v_ids;
end
$$;
comment on function bugle.workflow_ids is
  'New ids for the jobs of a workflow, by their numbers: each higher than those of the jobs it needs.';

-- Each job without an id needs another one without: following these leads to one that was met before.
create or replace function bugle.refuse_cycle(p_names text[], p_ids bigint[], p_job integer[], p_needs integer[])
returns void
language plpgsql
as $$
declare
  v_number integer := array_position(p_ids, 0);
  v_cycle integer[] := '{}';
begin
  while v_number <> all (v_cycle) loop
    v_cycle := v_cycle || v_number;
    select e.needs into v_number
    from unnest(p_job, p_needs) e (job, needs)
    where e.job = v_number
      and p_ids[e.needs] = 0
    limit 1;
  end loop;
  v_cycle := v_cycle[array_position(v_cycle, v_number) :];
  perform bugle.refuse_workflow(p_names[v_number], format('it depends on itself: %s', (
      select string_agg(p_names[c.number], ' after ' order by c.place)
      from unnest(v_cycle[:20] || v_number) with ordinality c (number, place))),
    'Remove one of these from an "after".');
end
$$;
comment on function bugle.refuse_cycle is 'Reject a workflow in which jobs wait for each other, naming them.';

-- Locked until the commit: each either has ended, or will find the new dependants when it ends.
create or replace function bugle.lock_dependencies(p_ids bigint[])
returns table (id bigint, state text, reason text, result jsonb, error text)
language plpgsql set enable_seqscan = off set jit = off
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
  update bugle.jobs_live j set awaited = true where j.id = any (v_live) and j.awaited is not true;
  -- where completed jobs are not kept, one that is missing has completed
  select i.id into v_missing
  from unnest(p_ids) i (id)
  where not exists (select from bugle.jobs j where j.id = i.id)
    and (i.id > pg_sequence_last_value('bugle.job_ids') or (select s.keep_completed from bugle.settings s))
  limit 1;
  if found then
    perform bugle.refuse_unknown_job(v_missing);
  end if;
  return query
  with ended as materialized (
    select j.id, j.state, j.reason, j.result, j.last_error
    from bugle.jobs j
    where j.id = any (p_ids)
      and bugle.is_final(j.state)
  )
  select i.id, case when i.id <> all (v_live) then coalesce(e.state, 'completed') end, e.reason, e.result, e.last_error
  from unnest(p_ids) i (id)
    left join ended e on e.id = i.id;
end
$$;
comment on function bugle.lock_dependencies is
  'Lock jobs that others are to wait for. Returns how each ended; its state is null if it is live.';

create or replace function bugle.columns_from_json(p_spec jsonb) returns bugle.jobs_live
language plpgsql
as $$
declare
  v_fields constant text[] := bugle.settable_columns() || '{delay,after}'::text[];
  v_job bugle.jobs_live;
begin
  if jsonb_typeof(p_spec) <> 'object' then
    perform bugle.refuse('JB040', format('a job must be an object, not %s', bugle.quoted(p_spec::text)),
      'For example {"command": "send_mail", "payload": {}, "after": ["x"]}.');
  elsif p_spec - v_fields <> '{}' then
    perform bugle.refuse('JB040', format('a job has no field %s', (
        select bugle.quoted(k.key) from jsonb_object_keys(p_spec - v_fields) k (key) limit 1)),
      format('Fields: %s.', array_to_string(v_fields, ', ')));
  elsif jsonb_typeof(p_spec -> 'command') is distinct from 'string' then
    perform bugle.refuse('JB040', 'the command is missing',
      'Every job needs one, for example {"command": "send_mail"}.');
  end if;
  v_job := jsonb_populate_record(null::bugle.jobs_live,
    jsonb_strip_nulls(p_spec - '{payload,headers,after,delay}'::text[]));
  v_job.payload := p_spec -> 'payload';
  v_job.headers := nullif(p_spec -> 'headers', 'null');
  v_job.run_at := coalesce(v_job.run_at, now() + (p_spec ->> 'delay')::interval);
  return v_job;
end
$$;
comment on function bugle.columns_from_json is
  'What a new job given as JSON sets. Its fields are checked, their values are not.';

create or replace function bugle.jobs_from_json(p_jobs jsonb, p_ids bigint[], p_parent bigint) returns bugle.jobs_live[]
language plpgsql
as $$
declare
  v_spec record;
  v_job bugle.jobs_live;
  v_jobs bugle.jobs_live[] := '{}';
  v_hint text;
begin
  for v_spec in
    select j.name, j.spec, p_ids[j.number] as id, n.count as outstanding,
      p_parent is not null or exists (select from bugle.dependencies d where d.needs = p_ids[j.number]) as is_needed
    from jsonb_each(p_jobs) with ordinality j (name, spec, number)
      cross join lateral (
        select count(*) from bugle.dependencies d where d.job = p_ids[j.number] and d.state is null) n
  loop
    v_job := bugle.columns_from_json(v_spec.spec);
    v_job.id := v_spec.id;
    v_job.state := 'ready';
    v_job := bugle.validate_job(v_job);
    v_job.parent := p_parent;
    v_job.awaited := nullif(v_spec.is_needed or v_job.awaited is true, false);
    if v_spec.outstanding > 0 then
      v_job.outstanding := v_spec.outstanding;
      -- seed: dependants_do_not_wait
      v_job.state := 'waiting';
    end if;
    v_jobs := v_jobs || v_job;
  end loop;
  return v_jobs;
exception when others then
  get stacked diagnostics v_hint = pg_exception_hint;
  raise exception using errcode = sqlstate,
    message = format('job %s of the workflow: %s', bugle.quoted(v_spec.name), sqlerrm),
    hint = case when v_hint = '' then 'Each field takes what the column of bugle.jobs takes.' else v_hint end;
end
$$;
comment on function bugle.jobs_from_json is
  'The jobs of a workflow whose dependencies are stored: ready, or waiting for those that are outstanding.';

-- The dependencies are stored first. The rest follows from them: how many jobs a new one waits for, whether another
-- waits for it, whether it needs one that has failed.
create or replace function bugle.insert_jobs(p_jobs jsonb, p_parent bigint) returns table (name text, id bigint)
language plpgsql set enable_seqscan = off set jit = off
as $$
declare
  v_is_named constant boolean := jsonb_typeof(p_jobs) = 'object';
  -- the jobs of an array are named by their position
  v_jobs constant jsonb := case when v_is_named then p_jobs else (
    select jsonb_object_agg(j.place, j.spec) from jsonb_array_elements(p_jobs) with ordinality j (spec, place)) end;
  v_edges bugle.workflow_edge[];
  v_ids bigint[];
  v_new bugle.jobs_live[];
begin
  v_edges := array(select e from bugle.workflow_edges(v_jobs) e);
  perform bugle.check_edges(v_jobs, v_edges);
  v_ids := bugle.workflow_ids(array(select jsonb_object_keys(v_jobs)), v_edges);
  insert into bugle.dependencies (job, needs, name, on_failure, state, reason, result, error, ended_at)
  select v_ids[e.job], coalesce(v_ids[e.needs], e.needs_id), case when v_is_named then e.needs_name end, e.policy,
    n.state, n.reason, n.result, n.error, case when n.state is not null then now() end
  from unnest(v_edges) e
    left join bugle.lock_dependencies(array(
      select distinct w.needs_id from unnest(v_edges) w where w.needs_id is not null)) n on n.id = e.needs_id;

  v_new := bugle.jobs_from_json(v_jobs, v_ids, p_parent);
  perform set_config('bugle.skip_checks', 'on', true);
  -- the trigger takes their idempotency keys, in this order: two workflows with the same keys do not deadlock
  insert into bugle.jobs_live overriding system value
  select j.* from unnest(v_new) j order by j.command, j.idempotency_key;
  perform set_config('bugle.skip_checks', '', true);

  if v_is_named then
    insert into bugle.workflow_jobs (job, workflow, name)
    select v_ids[j.number], min(v_ids[j.number]) over (), j.name
    from jsonb_each(v_jobs) with ordinality j (name, spec, number);
  end if;
  if p_parent is not null then
    insert into bugle.dependencies (job, needs, name, on_failure, child)
    select p_parent, v_ids[j.number], case when v_is_named then j.name end, 'run', true
    from jsonb_each(v_jobs) with ordinality j (name, spec, number);
    perform bugle.record_attempt(j, 'waiting') from bugle.jobs_live j where j.id = p_parent;
    update bugle.jobs_live j
    set state = 'waiting',
      outstanding = cardinality(v_ids),
      answer = null,
      answer_by = null,
      answer_token = null,
      updated_at = now()
    where j.id = p_parent;
    perform bugle.release(array[p_parent]);
  end if;

  perform bugle.ring(q.queue) from (select distinct j.queue from unnest(v_new) j where j.state = 'ready') q;
  -- those that need a job that has failed already
  perform bugle.end_jobs(array(
    select bugle.ending(d.job, 'failed', 'dependency_failed', bugle.dependency_error(min(d.needs)),
      'dependency_failed')
    from bugle.dependencies d
    where d.job = any (v_ids)
      and d.on_failure = 'fail'
      and d.state <> 'completed'
    group by d.job));
  return query
  select case when v_is_named then j.name end, v_ids[j.number]
  from jsonb_each(v_jobs) with ordinality j (name, spec, number);
end
$$;
comment on function bugle.insert_jobs is 'Store new jobs, by name or in an array, each waiting for those it comes '
  'after; as children of a job, if one is given.';
