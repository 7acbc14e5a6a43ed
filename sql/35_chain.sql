-- chain: a job that is made of steps, run in order in one worker. Called by workers, between claim and complete.
--
-- jobs.step says how many steps are done, jobs.context what they have put out; both change in one statement with the record of
-- the step, under the worker's claim. Whoever claims the job next, after a crash or a retry, goes on with the step behind.
--
-- A worker that took a chain says start_step, runs what it is told, says finish_step, which starts the next one; the last one
-- completes the job. A try that failed is told to retry_step, which says how long to wait before the next try, or that this
-- was the last. Each of them may be repeated after a lost reply.

-- The local retries of a step: as its command says, or the policy named step.
create or replace function bugle.step_policy(p_name text) returns bugle.retry_policies
language plpgsql stable
as $$
declare
  v_policy bugle.retry_policies;
begin
  select p.* into v_policy
  from bugle.retry_policies p
  where p.name in ((select c.step_retry_policy from bugle.commands c where c.name = p_name), 'step')
  order by p.name = 'step'
  limit 1;
  if not found then
    v_policy := ('step', 'exponential', 3, '1 second', 2, '1 minute', 0.1, null, null)::bugle.retry_policies;
  end if;
  return v_policy;
end
$$;
comment on function bugle.step_policy is 'The policy by which a step is tried again in the same worker.';

-- The job itself, locked, if this worker holds it under this claim.
create or replace function bugle.lock_one_held(p_worker bigint, p_job bugle.held_job) returns bugle.jobs_live
language plpgsql
as $$
declare
  v_job bugle.jobs_live;
begin
  select j.* into v_job
  from bugle.jobs_live j
  where j.id = p_job.id
    and j.claim = p_job.claim
    and j.worker = p_worker
    and j.state = 'running'
  for update;
  return v_job;
end
$$;
comment on function bugle.lock_one_held is 'Lock a job that a worker holds under this claim; null if it does not.';

-- The record of a step whose try begins now.
create or replace function bugle.record_start(p_job bugle.jobs_live, p_position integer, p_name text, p_within integer, p_try integer)
returns void
language plpgsql
as $$
begin
  insert into bugle.step_records as r (
    job, position, name, within, state, attempts, claim, worker, first_started_at, last_started_at)
  values (
    p_job.id, p_position, p_name, p_within, 'running', p_try, p_job.claim, p_job.worker, clock_timestamp(), clock_timestamp())
  on conflict (job, position) do update
  set name = excluded.name,
    state = 'running',
    attempts_before = case when r.claim = excluded.claim then r.attempts_before else r.attempts end,
    attempts = case when r.claim = excluded.claim then r.attempts_before else r.attempts end + p_try,
    claim = excluded.claim,
    worker = excluded.worker,
    first_started_at = coalesce(r.first_started_at, excluded.first_started_at),
    last_started_at = excluded.last_started_at,
    last_ended_at = null,
    updated_at = now();
end
$$;
comment on function bugle.record_start is 'Note that a step has begun.';

-- Pass over what an operator has set, then start what comes next; with nothing left the job is completed.
create or replace function bugle.begin_next(p_job bugle.jobs_live, p_nonce uuid, p_try integer)
returns table (verdict text, "position" integer, context jsonb, timeout_seconds double precision, default_timeout_seconds double precision)
language plpgsql
as $$
declare
  v_step integer := coalesce(p_job.step, 0);
begin
  while exists (
    select
    from bugle.step_records r
    where r.job = p_job.id
      and r.position = v_step + 1
      and r.within is null
      and r.state in ('done', 'skipped'))
    and v_step < cardinality(p_job.steps)
  loop
    v_step := v_step + 1;
  end loop;
  if v_step > coalesce(p_job.step, 0) then
    update bugle.jobs_live j set step = v_step where j.id = p_job.id;
  end if;

  if v_step >= cardinality(p_job.steps) then
    perform bugle.complete(p_job.worker, p_nonce,
      array[(p_job.id, p_job.claim, nullif(p_job.context, '{}'))::bugle.finished_job]);
    if not (select s.keep_completed from bugle.settings s) then
      delete from bugle.step_records r where r.job = p_job.id;
    end if;
    return query
    select null::text, null::integer, p_job.context, null::double precision, null::double precision;
    return;
  end if;

  perform bugle.record_start(p_job, v_step + 1, p_job.steps[v_step + 1], null, p_try);
  return query
  select null::text, v_step + 1, p_job.context,
    extract(epoch from (
      select c.timeout from bugle.commands c where c.name = p_job.steps[v_step + 1]))::double precision,
    extract(epoch from s.step_timeout)::double precision
  from bugle.settings s;
end
$$;
comment on function bugle.begin_next is 'Start the next step of a chain, or complete it if none is left.';

create or replace function bugle.start_step(p_worker bigint, p_nonce uuid, p_job bugle.held_job, p_try integer default 1)
returns table (verdict text, "position" integer, context jsonb, timeout_seconds double precision, default_timeout_seconds double precision)
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_job bugle.jobs_live;
begin
  perform bugle.check_worker(p_worker, p_nonce);
  v_job := bugle.lock_one_held(p_worker, p_job);
  if v_job.id is null then
    return query
    select v.verdict, null::integer, null::jsonb, null::double precision, null::double precision
    from bugle.verdicts_for_rest(p_worker, array[p_job], '{}') v;
    return;
  end if;
  if v_job.steps is null then
    perform bugle.refuse('JB031', format('job %s is no chain', p_job.id), 'Only a job with steps has a next one.');
  end if;
  -- what is lost of this in a crash of the server is said again
  if coalesce(v_job.step, 0) < cardinality(v_job.steps) then
    perform set_config('synchronous_commit', 'off', true);
  end if;
  return query
  select n.* from bugle.begin_next(v_job, p_nonce, greatest(p_try, 1)) n;
end
$$;
comment on function bugle.start_step is 'Start the next step of a chain this worker holds: its place, the context, and how long it may take (by its command, and if nothing else says so).';

create or replace function bugle.finish_step(
  p_worker bigint, p_nonce uuid, p_job bugle.held_job, p_position integer, p_try integer, p_output jsonb,
  p_skipped boolean default false)
returns table (verdict text, "position" integer, context jsonb, timeout_seconds double precision, default_timeout_seconds double precision)
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_job bugle.jobs_live;
  v_context jsonb;
begin
  perform bugle.check_worker(p_worker, p_nonce);
  v_job := bugle.lock_one_held(p_worker, p_job);
  if v_job.id is null then
    return query
    select v.verdict, null::integer, null::jsonb, null::double precision, null::double precision
    from bugle.verdicts_for_rest(p_worker, array[p_job], '{}') v;
    return;
  end if;
  if v_job.steps is null or p_position > coalesce(v_job.step, 0) + 1 or p_position < 1 or p_position is null then
    perform bugle.refuse('JB031', format('step %s of job %s cannot end: %s', p_position, p_job.id,
        case when v_job.steps is null then 'it is no chain' else format('%s of its steps are done', coalesce(v_job.step, 0)) end),
      'Steps end in their order.');
  end if;
  if p_position <= coalesce(v_job.step, 0) then
    return query
    select 'repeated', n."position", n.context, n.timeout_seconds, n.default_timeout_seconds
    from bugle.begin_next(v_job, p_nonce, 1) n;
    return;
  end if;

  v_context := bugle.merged(v_job.context, v_job.steps[p_position], case when not p_skipped then p_output end);
  perform bugle.record_end(v_job, p_position, p_try, case when p_skipped then 'skipped' else 'done' end, p_output);
  update bugle.jobs_live j
  set step = p_position,
    context = v_context,
    progress = 100.0 * p_position / cardinality(j.steps),
    progress_note = j.steps[p_position + 1],
    answer = null, -- it was this step's
    updated_at = now()
  where j.id = v_job.id
  returning j.* into v_job;
  return query
  select n.* from bugle.begin_next(v_job, p_nonce, 1) n;
end
$$;
comment on function bugle.finish_step is 'End a step of a chain this worker holds and start the next: its output is merged into the context. The last one completes the job.';
