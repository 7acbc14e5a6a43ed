-- What the files beside this one share. Loaded once into a migrated database, by its owner.

create schema test;

create function test.equal(p_actual anycompatible, p_expected anycompatible, p_what text) returns void
language plpgsql
as $$
begin
  if p_actual is distinct from p_expected then
    raise exception '%: expected %, got %', p_what, left(coalesce(p_expected::text, 'null'), 1000),
      left(coalesce(p_actual::text, 'null'), 1000);
  end if;
end
$$;

-- A statement fails with this SQLSTATE and a message like this, and changes no job. Our own errors bring a hint.
create function test.refused(p_sql text, p_sqlstate text, p_message text default '%') returns void
language plpgsql
as $$
declare
  v_before constant text := test.all_jobs();
  v_sqlstate text;
  v_message text;
  v_hint text;
begin
  begin
    execute p_sql;
  exception when others then
    get stacked diagnostics
      v_sqlstate = returned_sqlstate, v_message = message_text, v_hint = pg_exception_hint;
  end;
  if v_sqlstate is null then
    raise exception 'not refused: %', p_sql;
  end if;
  if v_sqlstate <> p_sqlstate or v_message not like p_message then
    raise exception 'refused with % "%" instead of % "%": %', v_sqlstate, v_message, p_sqlstate, p_message, p_sql;
  end if;
  if v_sqlstate like 'JB%' and v_hint = '' then
    raise exception 'refused without a hint: % "%"', v_sqlstate, v_message;
  end if;
  perform test.equal(test.all_jobs(), v_before, 'a refused statement changes nothing');
end
$$;

-- With the owner's rights: a file may be acting as somebody who cannot read.
create function test.all_jobs() returns text
language sql
security definer
as $$
  select string_agg(to_jsonb(j)::text, e'\n' order by j.id) from bugle.jobs j
$$;

create function test.job(p_id bigint) returns bugle.jobs
language sql
security definer
as $$
  select j from bugle.jobs j where j.id = p_id
$$;

create function test.register(
  p_commands text[] default '{noop}', p_queues text[] default '{default}', p_slots integer default 100)
returns bigint
language sql
as $$
  select r.worker
  from bugle.register('tester', 'host-1', 42, '0.1.0', bugle.protocol(), p_queues,
    array_fill(p_slots, array[cardinality(p_queues)]), p_commands) r
$$;

create function test.nonce(p_worker bigint) returns uuid
language sql
as $$
  select r.nonce from bugle.registrations r where r.id = p_worker
$$;

-- As if its process had died some time ago: nobody holds its proof of life, and no session is its.
create function test.dies(p_worker bigint) returns void
language sql
as $$
  update bugle.registrations r
  set life_key = hashtextextended(gen_random_uuid()::text, 0), backend_pid = 0
  where r.id = p_worker
$$;

create function test.claim(p_worker bigint, p_slots integer default 1, p_queue text default 'default')
returns setof bugle.claimed_job
language sql
as $$
  select c.* from bugle.claim(p_worker, test.nonce(p_worker),
    array[(p_queue, p_slots, null, 'awake')::bugle.queue_request]) c
  order by c.turn, c.priority, c.run_at, c.id
$$;

-- Claim one job that is ready already, or a new one of the command noop.
create function test.running(p_worker bigint, p_id bigint default null) returns bugle.held_job
language plpgsql
as $$
declare
  v_id constant bigint := coalesce(p_id, bugle.enqueue('noop'));
  v_held bugle.held_job;
begin
  select c.id, c.claim into v_held from test.claim(p_worker, 100) c where c.id = v_id;
  if v_held.id is null then
    raise exception 'job % was not claimed', v_id;
  end if;
  return v_held;
end
$$;

-- Each verb for one job; null when it was accepted, else the verdict.
create function test.complete(p_worker bigint, p_held bugle.held_job, p_result jsonb default null) returns text
language sql
as $$
  select v.verdict from bugle.complete(p_worker, test.nonce(p_worker),
    array[(p_held.id, p_held.claim, p_result)::bugle.finished_job]) v
$$;

create function test.fail(
  p_worker bigint, p_held bugle.held_job, p_error text default 'boom', p_code text default null,
  p_retryable boolean default true, p_retry_after double precision default null)
returns text
language sql
as $$
  select v.verdict
  from bugle.fail(p_worker, test.nonce(p_worker),
    array[(p_held.id, p_held.claim, p_error, p_code, p_retryable, p_retry_after)::bugle.failed_job]) v
$$;

create function test.give_back(p_worker bigint, p_held bugle.held_job) returns text
language sql
as $$
  select v.verdict from bugle.give_back(p_worker, test.nonce(p_worker), array[p_held]) v
$$;

create function test.snooze(p_worker bigint, p_held bugle.held_job, p_for interval) returns text
language sql
as $$
  select v.verdict from bugle.snooze(p_worker, test.nonce(p_worker), p_held, p_for) v
$$;

create function test.cancel_held(p_worker bigint, p_held bugle.held_job, p_error text) returns text
language sql
as $$
  select v.verdict from bugle.cancel_held(p_worker, test.nonce(p_worker), p_held, p_error) v
$$;

create function test.wait(p_worker bigint, p_held bugle.held_job, p_token text default null,
  p_for interval default null) returns text
language sql
as $$
  select v.verdict from bugle.wait(p_worker, test.nonce(p_worker), p_held, p_token, p_for) v
$$;

-- A policy without jitter, so that delays can be compared.
create function test.policy(
  p_kind text, p_retries integer default 15, p_delay interval default '5 seconds', p_factor double precision default 2,
  p_max_delay interval default '1 hour', p_jitter double precision default 0, p_per_day integer default null,
  p_days integer default null)
returns bugle.retry_policies
language sql
as $$
  insert into bugle.retry_policies
  values ('test ' || gen_random_uuid(), p_kind, p_retries, p_delay, p_factor, p_max_delay, p_jitter, p_per_day, p_days)
  returning retry_policies
$$;

-- The delays after the first p_count failed attempts.
create function test.delays(p_policy bugle.retry_policies, p_attempts integer, p_random double precision default 0.5)
returns interval[]
language sql
as $$
  select array_agg(bugle.backoff(p_policy, a, '2026-01-01 00:00Z', '2026-01-01 00:00Z',
    p_random) - '2026-01-01 00:00Z'::timestamptz order by a)
  from generate_series(1, p_attempts) a
$$;

grant usage on schema test to public;

-- A new job of the command noop, brought into a state by the engine's own verbs.
create function test.job_in(p_state text, p_worker bigint) returns bigint
language plpgsql
as $$
declare
  v_held bugle.held_job;
  v_id bigint;
begin
  if p_state = 'scheduled' then
    return bugle.enqueue('noop', p_run_at => now() + interval '1 hour');
  end if;
  v_id := bugle.enqueue('noop');
  if p_state = 'paused' then
    perform bugle.pause(v_id);
  elsif p_state = 'cancelled' then
    perform bugle.cancel(v_id);
  elsif p_state <> 'ready' then
    v_held := test.running(p_worker, v_id);
    if p_state = 'retrying' then
      perform test.fail(p_worker, v_held);
    elsif p_state = 'failed' then
      perform test.fail(p_worker, v_held, p_retryable => false);
    elsif p_state = 'completed' then
      perform test.complete(p_worker, v_held);
    elsif p_state = 'waiting' then
      perform bugle.wait(p_worker, test.nonce(p_worker), v_held, null, null);
    end if;
  end if;
  return v_id;
end
$$;

-- Enqueue a workflow of the command noop: its names and ids as one object.
create function test.workflow(p_jobs jsonb) returns jsonb
language sql
as $$
  select jsonb_object_agg(w.name, w.id)
  from bugle.enqueue_workflow(jsonb_build_object('jobs', (
    select jsonb_object_agg(j.key, '{"command": "noop"}'::jsonb || j.value) from jsonb_each(p_jobs) j))) w
$$;

-- The states of the jobs of a workflow, by name.
create function test.states(p_workflow jsonb) returns text
language sql
as $$
  select string_agg(concat(w.key, ' ', coalesce((test.job(w.value::bigint)).state, 'gone')), ', ' order by w.key)
    from jsonb_each_text(p_workflow) w
$$;

-- A chain, and what a worker says about its steps. Null when it was accepted, else the verdict.
create function test.chain(p_steps text[] default '{a,b,c}', p_payload jsonb default '{}',
  p_command text default 'chain') returns bigint
language sql
as $$
  select bugle.enqueue(p_command, p_payload, p_steps => p_steps)
$$;

create function test.start_step(p_worker bigint, p_held bugle.held_job, p_try integer default 1) returns integer
language sql
as $$
  select n.position from bugle.start_step(p_worker, test.nonce(p_worker), p_held, p_try) n
$$;

create function test.finish_step(
  p_worker bigint, p_held bugle.held_job, p_position integer, p_output jsonb default null,
    p_skipped boolean default false, p_try integer default 1)
returns text
language sql
as $$
  select n.verdict from bugle.finish_step(p_worker, test.nonce(p_worker), p_held, p_position, p_try, p_output,
    p_skipped) n
$$;

create function test.retry_step(
  p_worker bigint, p_held bugle.held_job, p_position integer, p_try integer default 1, p_retryable boolean default true,
  p_retry_after double precision default null, p_code text default null)
returns double precision
language sql
as $$
  select n.delay_seconds
  from bugle.retry_step(p_worker, test.nonce(p_worker), p_held, p_position, p_try, 'boom', p_code, p_retryable,
    p_retry_after) n
$$;

-- The states of a job's steps, in order.
create function test.steps(p_id bigint) returns text
language sql
as $$
  select string_agg(s.name || ' ' || s.state, ', ' order by s.position) from bugle.steps s where s.job = p_id
$$;

-- As if the clock of the server had been set back: everything that is stored lies that much later by it.
create function test.clock_steps_back(p_by interval) returns void
language plpgsql
as $$
begin
  update bugle.keeping set ticked_at = ticked_at + p_by, watching_since = watching_since + p_by,
    upkeep_at = upkeep_at + p_by;
  update bugle.registrations
  set started_at = started_at + p_by, seen_at = seen_at + p_by, lost_at = lost_at + p_by,
    stopped_at = stopped_at + p_by;
  update bugle.jobs_live
  set run_at = run_at + p_by, deadline = deadline + p_by, answer_by = answer_by + p_by, created_at = created_at + p_by,
    updated_at = updated_at + p_by, first_started_at = first_started_at + p_by, started_at = started_at + p_by;
  update bugle.changes set changed_at = changed_at + p_by;
  update bugle.starts set started_at = started_at + p_by;
  update bugle.claim_positions set recheck_at = recheck_at + p_by;
  update bugle.unserved_routes set since = since + p_by;
  update bugle.schedules set created_at = created_at + p_by, next_at = next_at + p_by, last_at = last_at + p_by;
  update bugle.schedule_runs set slot = slot + p_by, enqueued_at = enqueued_at + p_by;
end
$$;

-- bugle.explain gives this reason, with a message and a fix like these, and facts.
create function test.explained(p_id bigint, p_reason text, p_message text, p_fix text default '%') returns void
language plpgsql
as $$
begin
  if not exists (
    select from bugle.explain(p_id) e
    where e.reason = p_reason and e.message like p_message and e.fix like p_fix and e.facts is not null)
  then
    raise exception 'expected % "%" "%", got %', p_reason, p_message, p_fix,
      (select jsonb_agg(to_jsonb(e)) from bugle.explain(p_id) e);
  end if;
end
$$;

-- The reasons of bugle.explain, in their order.
create function test.reasons(p_id bigint) returns text[]
language sql
as $$
  select array(select e.reason from bugle.explain(p_id) e)
$$;
