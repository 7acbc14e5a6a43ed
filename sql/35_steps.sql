-- steps: what a job has done so far, so that the next attempt continues behind it. Called by workers, between claim and
-- complete, under their claim.
--
-- A chain is a job made of steps that run in order in one worker. jobs.step says how many steps are done, jobs.context
-- holds their merged output; both change in one statement with the record of the step. A worker that claimed a chain
-- calls start_step, runs the step it returns, and calls finish_step, which starts the next step; the last one completes
-- the job. After a failed try it calls retry_step, which returns how long to wait before the next try, or that there is
-- none. Each call may be repeated after a lost reply.
--
-- An executor can also record steps of its own, by name: begin_step returns whether the step was done before, and its
-- output; end_step stores the output.

-- The context and every stored output may be as large as a payload. An object is merged into the context, key by key;
-- any other value is stored under the name of the step; null changes nothing.
create or replace function bugle.merged(p_context jsonb, p_name text, p_output jsonb) returns jsonb
language plpgsql stable
as $$
declare
  v_context constant jsonb := coalesce(p_context, '{}') || case
    when p_output is null or p_output = 'null' then '{}'
    when jsonb_typeof(p_output) = 'object' then p_output
    else jsonb_build_object(p_name, p_output)
  end;
  v_limit integer;
begin
  if pg_column_size(v_context) > 4096 then
    select s.max_payload_bytes into v_limit from bugle.settings s;
    if octet_length(v_context::text) > v_limit then
      perform bugle.refuse('JB003', format('column "context" would have %s bytes after step %s, the limit is %s',
          octet_length(v_context::text), bugle.quoted(p_name), v_limit),
        'Store large data elsewhere (all steps share a working folder) and refer to it in the output, '
        'or raise bugle.settings.max_payload_bytes.');
    end if;
  end if;
  return v_context;
end
$$;
comment on function bugle.merged is 'The context of a chain after the output of a step.';

-- Attempts are counted over all claims: those of earlier claims, and the tries under this one.
create or replace function bugle.record_start(
  p_job bugle.jobs_live, p_position integer, p_name text, p_within integer, p_try integer)
returns void
language plpgsql
as $$
begin
  insert into bugle.step_records as r (
    job, position, name, within, state, attempts, claim, worker, first_started_at, last_started_at)
  values (
    p_job.id, p_position, p_name, p_within, 'running', p_try, p_job.claim, p_job.worker, clock_timestamp(),
    clock_timestamp())
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
comment on function bugle.record_start is 'Record that a step has begun.';

create or replace function bugle.record_end(
  p_job bugle.jobs_live, p_position integer, p_try integer, p_state text, p_output jsonb, p_error text default null,
  p_code text default null)
returns void
language plpgsql
as $$
begin
  insert into bugle.step_records as r (
    job, position, name, state, attempts, claim, worker, first_started_at, last_started_at, last_ended_at, output,
    error, code)
  values (
    p_job.id, p_position, p_job.steps[p_position], p_state, coalesce(p_try, 1), p_job.claim, p_job.worker,
    p_job.started_at, p_job.started_at, clock_timestamp(), p_output,
    bugle.without_redacted(bugle.bounded(p_error), p_job.payload), left(p_code, 100))
  on conflict (job, position) do update
  set state = excluded.state,
    attempts = coalesce(r.attempts_before + p_try, r.attempts),
    last_ended_at = excluded.last_ended_at,
    output = excluded.output,
    error = coalesce(excluded.error, r.error),
    code = coalesce(excluded.code, r.code),
    updated_at = now();
end
$$;
comment on function bugle.record_end is 'Record how a try of a step ended.';

create or replace function bugle.steps_done(p_job bigint, p_from integer) returns integer
language plpgsql stable
as $$
declare
  v_step integer := p_from;
begin
  while exists (
    select
    from bugle.step_records r
    where r.job = p_job
      and r.position = v_step + 1
      and r.within is null
      -- seed: rescue_forgets_steps
      and r.state in ('done', 'skipped'))
  loop
    v_step := v_step + 1;
  end loop;
  return v_step;
end
$$;
comment on function bugle.steps_done is
  'How many steps of a chain are done, if these first ones are: those that an operator has set to done or skipped too.';

create or replace function bugle.begin_next(p_job bugle.jobs_live, p_try integer, inout verdict text default null,
  out "position" integer, out context jsonb, out timeout_seconds double precision,
  out default_timeout_seconds double precision)
language plpgsql
as $$
declare
  v_step constant integer := bugle.steps_done(p_job.id, coalesce(p_job.step, 0));
begin
  context := p_job.context;
  if v_step > coalesce(p_job.step, 0) then
    update bugle.jobs_live j set step = v_step where j.id = p_job.id;
  end if;

  if v_step >= cardinality(p_job.steps) then
    perform bugle.end_jobs(array[bugle.ending(p_job.id, 'completed', p_result => nullif(p_job.context, '{}'))]);
    if not (select s.keep_completed from bugle.settings s) then
      delete from bugle.step_records r where r.job = p_job.id;
    end if;
    return;
  end if;

  "position" := v_step + 1;
  perform bugle.record_start(p_job, "position", p_job.steps["position"], null, p_try);
  timeout_seconds := extract(epoch from (
    select c.timeout from bugle.commands c where c.name = p_job.steps["position"]));
  default_timeout_seconds := extract(epoch from (select s.step_timeout from bugle.settings s));
end
$$;
comment on function bugle.begin_next is 'Start the next step of a chain, or complete it if none is left.';

create or replace function bugle.start_step(
  p_worker bigint, p_nonce uuid, p_job bugle.held_job, p_try integer default 1)
returns table (
  verdict text, "position" integer, context jsonb, timeout_seconds double precision,
  default_timeout_seconds double precision)
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_job constant bugle.jobs_live := bugle.lock_held(p_worker, p_nonce, p_job);
begin
  if v_job.id is null then
    verdict := bugle.verdict_on(p_worker, p_job);
    return next;
    return;
  end if;
  if v_job.steps is null then
    perform bugle.refuse('JB031', format('job %s is not a chain', p_job.id), 'Only a job with steps has a next one.');
  end if;
  -- if this is lost in a crash of the server, it is called again
  if coalesce(v_job.step, 0) < cardinality(v_job.steps) then
    perform set_config('synchronous_commit', 'off', true);
  end if;
  return query
  select n.* from bugle.begin_next(v_job, greatest(p_try, 1)) n;
end
$$;
comment on function bugle.start_step is
  'Start the next step of a chain this worker holds: its position, the context, and how long it may take (by its '
  'command, and by default).';

create or replace function bugle.finish_step(
  p_worker bigint, p_nonce uuid, p_job bugle.held_job, p_position integer, p_try integer, p_output jsonb,
  p_skipped boolean default false)
returns table (
  verdict text, "position" integer, context jsonb, timeout_seconds double precision,
  default_timeout_seconds double precision)
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_job bugle.jobs_live := bugle.lock_held(p_worker, p_nonce, p_job);
  v_done constant integer := coalesce(v_job.step, 0);
  v_context jsonb;
begin
  if v_job.id is null then
    verdict := bugle.verdict_on(p_worker, p_job);
    return next;
    return;
  end if;
  if v_job.steps is null or p_position > v_done + 1 or p_position < 1 or p_position is null then
    perform bugle.refuse('JB031', format('step %s of job %s cannot end: %s', p_position, p_job.id,
        case when v_job.steps is null then 'it is not a chain' else format('%s of its steps are done', v_done) end),
      'Finish steps in their order.');
  end if;
  if p_position <= v_done then
    return query
    select n.* from bugle.begin_next(v_job, 1, 'repeated') n;
    return;
  end if;

  verdict := case when not p_skipped and pg_sequence_last_value('bugle.conditions') is not null then
    bugle.condition_met(v_job.steps[p_position], p_output) end;
  if verdict is not null then
    return next;
    return;
  end if;
  v_context := bugle.merged(v_job.context, v_job.steps[p_position], case when not p_skipped then p_output end);
  perform bugle.record_end(v_job, p_position, p_try, case when p_skipped then 'skipped' else 'done' end, p_output);
  update bugle.jobs_live j
  -- seed: a_step_is_skipped
  set step = p_position,
    context = v_context,
    progress = 100.0 * p_position / cardinality(j.steps),
    progress_note = j.steps[p_position + 1],
    answer = null, -- it was for this step
    updated_at = now()
  where j.id = v_job.id
  returning j.* into v_job;
  return query
  select n.* from bugle.begin_next(v_job, 1) n;
end
$$;
comment on function bugle.finish_step is
  'End a step of a chain this worker holds, unless a condition says otherwise, and start the next: its output is '
  'merged into the context. The last one completes the job.';

-- A delay that the executor asks for and the step's policy would not wait for is left to the job's own policy.
create or replace function bugle.retry_step(
  p_worker bigint, p_nonce uuid, p_job bugle.held_job, p_position integer, p_try integer, p_error text, p_code text,
  p_retryable boolean, p_retry_after_seconds double precision)
returns table (verdict text, delay_seconds double precision)
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_job constant bugle.jobs_live := bugle.lock_held(p_worker, p_nonce, p_job);
  v_policy bugle.retry_policies;
begin
  if v_job.id is null or p_position is distinct from coalesce(v_job.step, 0) + 1 or v_job.steps[p_position] is null then
    verdict := bugle.verdict_on(p_worker, p_job);
    return next;
    return;
  end if;
  perform set_config('synchronous_commit', 'off', true);
  v_policy := bugle.first_policy(array[
    (select c.step_retry_policy from bugle.commands c where c.name = v_job.steps[p_position]), 'step']);
  if coalesce(p_retryable, true) and greatest(p_try, 1) < bugle.attempts_allowed(v_policy)
    and coalesce(p_retry_after_seconds, 0) <= extract(epoch from v_policy.max_delay)
  then
    delay_seconds := case
      when p_retry_after_seconds is not null then greatest(p_retry_after_seconds, 0)
      else extract(epoch from bugle.backoff(v_policy, p_try, v_job.started_at, now(), random()) - now())
    end;
  end if;
  perform bugle.record_end(v_job, p_position, p_try,
    case when delay_seconds is null then 'failed' else 'retrying' end, null, p_error, p_code);
  return next;
end
$$;
comment on function bugle.retry_step is
  'Record that a try of a step failed. Returns how long this worker waits before the next try; null: no more, the job '
  'has to be failed.';

-- For a step that did not report its failure: it timed out or panicked.
create or replace function bugle.fail_open_step(p_job bugle.jobs_live, p_error text, p_code text) returns void
language plpgsql
as $$
begin
  update bugle.step_records r
  set state = 'failed',
    last_ended_at = clock_timestamp(),
    error = bugle.bounded(p_error),
    code = left(p_code, 100),
    updated_at = now()
  where r.job = p_job.id
    and r.claim = p_job.claim
    and r.state in ('running', 'retrying');
end
$$;
comment on function bugle.fail_open_step is 'Record that the step a job was in failed with it.';

create or replace function bugle.begin_step(
  p_worker bigint, p_nonce uuid, p_job bugle.held_job, p_name text, p_within integer default 0)
returns table (verdict text, is_done boolean, output jsonb)
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_job constant bugle.jobs_live := bugle.lock_held(p_worker, p_nonce, p_job);
  v_record bugle.step_records;
begin
  if coalesce(length(p_name), 0) not between 1 and 200 then
    perform bugle.refuse('JB001',
      format('the name of a step must have 1 to 200 characters, not %s', coalesce(length(p_name), 0)),
      'The name identifies the step within its job.');
  end if;
  is_done := false;
  if v_job.id is null then
    verdict := bugle.verdict_on(p_worker, p_job);
    return next;
    return;
  end if;
  select r.* into v_record
  from bugle.step_records r
  where r.job = v_job.id
    and r.within = p_within
    and r.name = p_name;
  if v_record.state in ('done', 'skipped') then
    is_done := true;
    output := v_record.output;
    return next;
    return;
  end if;
  perform set_config('synchronous_commit', 'off', true);
  perform bugle.record_start(v_job,
    coalesce(v_record.position, (
      select greatest(max(r.position), cardinality(v_job.steps), 0) + 1
      from bugle.step_records r
      where r.job = v_job.id)),
    p_name, p_within,
    case when v_record.claim = v_job.claim then v_record.attempts - v_record.attempts_before + 1 else 1 end);
  return next;
end
$$;
comment on function bugle.begin_step is
  'Begin a step of an executor, unless it was done before: then its stored output is returned.';

create or replace function bugle.end_step(
  p_worker bigint, p_nonce uuid, p_job bugle.held_job, p_name text, p_within integer, p_output jsonb,
  p_error text default null, p_code text default null)
returns text
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_job constant bugle.jobs_live := bugle.lock_held(p_worker, p_nonce, p_job);
begin
  if v_job.id is null then
    return bugle.verdict_on(p_worker, p_job);
  end if;
  perform bugle.merged(null, p_name, p_output); -- rejects an output that is larger than a payload may be
  update bugle.step_records r
  set state = case when p_error is null then 'done' else 'failed' end,
    last_ended_at = clock_timestamp(),
    output = case when p_error is null then p_output end,
    error = coalesce(bugle.without_redacted(bugle.bounded(p_error), v_job.payload), r.error),
    code = case when p_error is null then r.code else left(p_code, 100) end,
    updated_at = now()
  where r.job = v_job.id
    and r.within = p_within
    and r.name = p_name
    and r.claim = v_job.claim
    and r.state = 'running';
  if not found then
    return 'repeated';
  end if;
  return null;
end
$$;
comment on function bugle.end_step is
  'End a step of an executor: done with its output, or failed. Returns null if that was recorded.';

create or replace function bugle.resolve_step(p_id bigint, p_output jsonb) returns boolean
language plpgsql
as $$
declare
  v_job bugle.jobs_live;
  v_position integer;
begin
  select j.* into v_job
  from bugle.jobs_live j
  where j.id = p_id
    and j.state = 'waiting'
    and j.steps is not null
    and j.attempt > 0;
  if not found then
    return false;
  end if;
  v_position := coalesce(v_job.step, 0) + 1;
  perform bugle.record_end(v_job, v_position, null, 'done', p_output);
  update bugle.jobs_live j
  set step = v_position,
    context = bugle.merged(j.context, j.steps[v_position], p_output),
    updated_at = now()
  where j.id = p_id
  returning j.* into v_job;
  if v_position >= cardinality(v_job.steps) then
    perform bugle.end_jobs(array[
      bugle.ending(p_id, 'completed', 'resolved', p_result => nullif(v_job.context, '{}'))]);
    return true;
  end if;
  -- waiting does not count as an attempt: this one continues
  update bugle.jobs_live j
  set state = 'ready',
    attempt = j.attempt - 1,
    answer_by = null,
    answer_token = null,
    answer = null
  where j.id = p_id;
  perform bugle.ring(v_job.queue);
  return true;
end
$$;
comment on function bugle.resolve_step is
  'Answer the step of a chain that waits: the answer is its output, and the chain continues. False if the job is '
  'not a chain.';

-- Attempts, times and errors are kept.
create or replace function bugle.reset_steps(p_ids bigint[]) returns void
language sql set enable_seqscan = off set jit = off
as $$
  update bugle.step_records r
  set state = 'pending',
    output = null,
    updated_at = now()
  where r.job = any (p_ids);
  update bugle.jobs_live j
  set step = null,
    context = null
  where j.id = any (p_ids)
    and (j.step is not null or j.context is not null)
$$;
comment on function bugle.reset_steps is 'Reset jobs to before their first steps.';
