-- retry: running -> retrying, failed; retrying, scheduled -> ready; overdue -> failed. Workers report failures; the
-- keeper promotes and expires.

create or replace function bugle.bounded(p_text text) returns text
language sql immutable parallel safe
return left(p_text, 10000);
comment on function bugle.bounded is 'A text as it is stored: at most 10,000 characters.';

-- Pure: the clock and the random number (0 to 1) are arguments. The exponent is clamped before power(), to where the
-- result is about e^600: beyond the cap of any policy, and within a double's range. A failure whose delay cannot be
-- computed could not even be recorded.
create or replace function bugle.backoff(
  p_policy bugle.retry_policies, p_attempt integer, p_first_started_at timestamptz, p_now timestamptz,
  p_random double precision)
returns timestamptz
language plpgsql immutable parallel safe set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_delay constant double precision := extract(epoch from p_policy.delay);
  v_cap constant double precision := extract(epoch from p_policy.max_delay);
  v_attempt constant integer := greatest(p_attempt, 1);
  v_exponent integer := 0;
  v_seconds double precision;
begin
  case p_policy.kind
    when 'exponential', 'endless' then
      v_exponent := v_attempt - 1;
    when 'fixed_then_exponential' then
      v_exponent := greatest(v_attempt - 3, 0);
    when 'daily' then
      -- the last retry of a day is followed by the first of the next, a whole number of days after the first attempt
      if v_attempt > 1 and (v_attempt - 1) % p_policy.per_day = 0 then
        return greatest(p_now,
          p_first_started_at + make_interval(days => least((v_attempt - 1) / p_policy.per_day, 100000)));
      end if;
    else
      null;
  end case;
  v_seconds := v_delay * power(p_policy.factor, least(v_exponent, 600 / ln(greatest(p_policy.factor, 1.0000001))));
  if p_policy.kind in ('exponential', 'endless', 'fixed_then_exponential') then
    v_seconds := least(v_seconds, v_cap);
  end if;
  -- jitter comes after the cap, so that jobs at the cap are spread too
  return p_now + make_interval(secs => v_seconds * (1 + p_policy.jitter * (2 * p_random - 1)));
end
$$;
comment on function bugle.backoff is
  'When a job is tried again after its p_attempt-th attempt failed. Pure: clock and random number are arguments.';

create or replace function bugle.attempts_allowed(p_policy bugle.retry_policies) returns integer
language sql immutable parallel safe
return case p_policy.kind
  when 'endless' then 2147483647
  when 'daily' then p_policy.per_day * coalesce(p_policy.days, 2) + 1
  else p_policy.retries + 1
end;
comment on function bugle.attempts_allowed is 'How often a job is tried under a policy.';

-- A job whose policy is gone would silently be retried by the default one.
create or replace function bugle.keep_policy_in_use() returns trigger
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_user record;
begin
  if tg_op = 'UPDATE' and new.name = old.name then
    return new;
  end if;
  if old.name in ('default', 'step') then
    perform bugle.refuse('JB031', format('the retry policy %s cannot be removed or renamed', bugle.quoted(old.name)),
      'It applies to jobs, or steps, that name none. Update its columns instead.');
  end if;
  select u.name, u.way_out into v_user
  from (
    (
      select format('job %s', j.id), 'Wait until its live jobs have ended'
      from bugle.jobs_live j
      where j.retry_policy = old.name
      limit 1)
    union all
    select format('the schedule %s', bugle.quoted(s.name)), 'Change its retry_policy first'
    from bugle.schedules s
    where s.retry_policy = old.name
    union all
    select format('the command %s', bugle.quoted(c.name)), 'Change its row in bugle.commands first'
    from bugle.commands c
    where old.name in (c.retry_policy, c.step_retry_policy)) u (name, way_out)
  limit 1;
  if found then
    perform bugle.refuse('JB031', format('the retry policy %s is used by %s', bugle.quoted(old.name), v_user.name),
      v_user.way_out || ', or update the policy instead.');
  end if;
  return case tg_op when 'UPDATE' then new else old end;
end
$$;
comment on function bugle.keep_policy_in_use is
  'Trigger: reject the removal of a retry policy that live jobs, schedules or commands name, or that is a default.';

select bugle.keep_trigger('bugle.retry_policies', 'keep_policy_in_use', $$
  before delete or update of name on bugle.retry_policies
  for each row execute function bugle.keep_policy_in_use()$$);

create or replace function bugle.builtin_policies() returns setof bugle.retry_policies
language sql immutable parallel safe
as $$
  values ('default', 'exponential', 15, interval '5 seconds', 2, interval '1 hour', 0.1, null::integer, null::integer),
    ('none', 'fixed', 0, '0', 1, '0', 0, null, null),
    ('fixed', 'fixed', 15, '1 minute', 1, '1 hour', 0.1, null, null),
    ('exponential', 'exponential', 15, '5 seconds', 2, '1 hour', 0.1, null, null),
    ('fixed_then_exponential', 'fixed_then_exponential', 15, '5 seconds', 2, '1 hour', 0.1, null, null),
    ('endless', 'endless', null, '5 seconds', 2, '1 hour', 0.1, null, null),
    ('daily', 'daily', null, '10 minutes', 1, '1 hour', 0.1, 3, 2),
    ('step', 'exponential', 3, '1 second', 2, '1 minute', 0.1, null, null)
$$;
comment on function bugle.builtin_policies is
  'The retry policies of a new installation. "default" and "step" apply if their rows are deleted, too.';

-- If even the last one was deleted, it applies as it was installed: a failure must be recorded nonetheless.
create or replace function bugle.first_policy(p_names text[]) returns bugle.retry_policies
language plpgsql stable
as $$
begin
  return coalesce(
    (
      select p
      from bugle.retry_policies p
      where p.name = any (p_names)
      order by array_position(p_names, p.name)
      limit 1),
    (select b from bugle.builtin_policies() b where b.name = p_names[cardinality(p_names)]));
end
$$;
comment on function bugle.first_policy is 'The first of these retry policies that exists.';

create or replace function bugle.policy_of(p_job bugle.jobs) returns bugle.retry_policies
language plpgsql stable
as $$
declare
  v_policy bugle.retry_policies := bugle.first_policy(array[
    p_job.retry_policy, (select c.retry_policy from bugle.commands c where c.name = p_job.command), 'default']);
begin
  v_policy.delay := coalesce(p_job.retry_delay, v_policy.delay);
  v_policy.max_delay := greatest(v_policy.max_delay, p_job.retry_delay);
  return v_policy;
end
$$;
comment on function bugle.policy_of is
  'The retry policy in force for a job: its own, its command''s, or the default, with the job''s own retry_delay.';

create or replace function bugle.max_attempts_of(p_job bugle.jobs) returns integer
language plpgsql stable
as $$
begin
  return coalesce(
    p_job.max_attempts,
    (select c.max_attempts from bugle.commands c where c.name = p_job.command),
    bugle.attempts_allowed(bugle.policy_of(p_job)));
end
$$;
comment on function bugle.max_attempts_of is
  'How often a job is tried: its own number, its command''s, or its policy''s.';

-- The steps of a chain have been retried already, each by itself. The chain as a whole is retried, from the step that
-- failed, only if the job or its command names a policy or a number of attempts.
create or replace function bugle.is_retried_as_a_whole(p_job bugle.jobs) returns boolean
language plpgsql stable
as $$
begin
  return p_job.steps is null or num_nonnulls(p_job.retry_policy, p_job.max_attempts) > 0
    or exists (
      select
      from bugle.commands c
      where c.name = p_job.command
        and num_nonnulls(c.retry_policy, c.max_attempts) > 0);
end
$$;
comment on function bugle.is_retried_as_a_whole is
  'Whether the retry policy of a job applies, after the retries of its steps.';

create or replace function bugle.reason_not_to_retry(p_job bugle.jobs, p_code text, p_retryable boolean) returns text
language plpgsql stable
as $$
begin
  return case
    when not coalesce(p_retryable, true) then 'not_retryable'
    when bugle.is_retried_as_a_whole(p_job) and p_job.attempt < bugle.max_attempts_of(p_job) then null
    when p_code = 'timeout' then 'timeout'
    when bugle.is_retried_as_a_whole(p_job) then 'attempts_exhausted'
    else 'step_failed'
  end;
end
$$;
comment on function bugle.reason_not_to_retry is
  'Why a job whose attempt failed has failed for good. Null: it is retried.';

create or replace function bugle.describe_attempt(p_job bugle.jobs) returns text
language plpgsql stable
as $$
declare
  v_most constant integer := bugle.max_attempts_of(p_job);
begin
  return case
    when v_most < 2147483647 and bugle.is_retried_as_a_whole(p_job) then format('%s of %s', p_job.attempt, v_most)
    else p_job.attempt::text
  end;
end
$$;
comment on function bugle.describe_attempt is
  'The attempt a job is in, and how many it has: "1 of 16", or "1" if they are not limited.';

create or replace function bugle.retries_of(p_id bigint, out attempt text, out policy text)
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  select bugle.describe_attempt(j), (bugle.policy_of(j)).name into attempt, policy from bugle.jobs j where j.id = p_id;
end
$$;
comment on function bugle.retries_of is
  'The attempt a job is in, of how many ("1 of 16"), and the name of the retry policy in force.';

create or replace function bugle.record_attempt(
  p_job bugle.jobs_live, p_outcome text, p_error text default null, p_code text default null)
returns void
language sql
as $$
  insert into bugle.attempts (job, claim, attempt, worker, started_at, ended_at, outcome, command, code, error)
  values (
    p_job.id, p_job.claim, p_job.attempt, p_job.worker, p_job.started_at, now(), p_outcome, p_job.command,
    left(p_code, 100), bugle.bounded(p_error))
  -- seed: failed_attempts_leave_no_trace
  on conflict (job, claim) do nothing
$$;
comment on function bugle.record_attempt is 'Keep a row about an attempt that did not end its job as completed.';

create or replace function bugle.fail_attempt(
  p_job bugle.jobs_live, p_failed bugle.failed_job, p_result jsonb default null,
  out ending bugle.ending, out retry_at timestamptz)
language plpgsql
as $$
declare
  v_reason text;
begin
  p_failed.error := bugle.without_redacted(p_failed.error, p_job.payload);
  perform bugle.record_attempt(p_job, case p_failed.code when 'timeout' then 'timed_out' else 'failed' end,
    p_failed.error, p_failed.code);
  if p_job.steps is not null then
    perform bugle.fail_open_step(p_job, p_failed.error, p_failed.code);
  end if;
  v_reason := bugle.reason_not_to_retry(p_job, p_failed.code, p_failed.retryable);
  if v_reason is not null then
    ending := bugle.ending(p_job.id, 'failed', v_reason, p_failed.error, p_failed.code, p_result);
    return;
  end if;
  retry_at := case
    when p_failed.retry_after_seconds is null then
      bugle.backoff(bugle.policy_of(p_job), p_job.attempt, p_job.first_started_at, now(), random())
    else now() + make_interval(secs => least(greatest(p_failed.retry_after_seconds, 0), 315360000))
  end;
  update bugle.jobs_live j
  set state = 'retrying',
    run_at = retry_at,
    last_error = p_failed.error,
    last_error_code = p_failed.code,
    updated_at = now()
  where j.id = p_job.id;
end
$$;
comment on function bugle.fail_attempt is
  'Record that the attempt of a locked job failed. It is retried at a time, or has to be ended.';

create or replace function bugle.fail(p_worker bigint, p_nonce uuid, p_jobs bugle.failed_job[])
returns setof bugle.verdict
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_held bigint[] := '{}';
  v_endings bugle.ending[] := '{}';
  v_failed bugle.failed_job;
  v_job bugle.jobs_live;
  v_outcome record;
  v_next timestamptz;
begin
  perform bugle.check_worker(p_worker, p_nonce);

  for v_failed in
    select f.id, f.claim, bugle.bounded(f.error), left(f.code, 100), f.retryable, f.retry_after_seconds
    from unnest(p_jobs) f
    order by f.id
  loop
    -- seed: failure_ignores_the_claim
    v_job := bugle.lock_held(p_worker, p_nonce, (v_failed.id, v_failed.claim)::bugle.held_job);
    continue when v_job.id is null;
    v_held := v_held || v_job.id;
    select f.* into v_outcome from bugle.fail_attempt(v_job, v_failed) f;
    if v_outcome.retry_at is null then
      v_endings := v_endings || v_outcome.ending;
    end if;
    v_next := least(v_next, v_outcome.retry_at);
  end loop;

  perform bugle.end_jobs(v_endings);
  if v_next is not null then
    perform bugle.expect(v_next);
    perform bugle.release(v_held);
  end if;
  return query
  select v.*
  from bugle.verdicts_for_rest(p_worker,
    array(select (f.id, f.claim)::bugle.held_job from unnest(p_jobs) f), v_held) v;
end
$$;
comment on function bugle.fail is
  'Report failed attempts of jobs this worker holds: each is retried later, or has failed.';

-- A worker logs it. Only of jobs that it ran last.
create or replace function bugle.after_failure(p_worker bigint, p_nonce uuid, p_jobs bigint[])
returns table (id bigint, has_failed boolean, retry_at timestamptz, attempts integer, reason text)
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.check_worker(p_worker, p_nonce);
  return query
  select j.id, bugle.is_final(j.state), case j.state when 'retrying' then j.run_at end,
    nullif(bugle.max_attempts_of(j), 2147483647), j.reason
  from unnest(p_jobs) f (id)
    cross join lateral bugle.job(f.id) j
  where j.worker = p_worker;
end
$$;
comment on function bugle.after_failure is
  'What became of jobs whose attempt failed: retried at a time, or failed for a reason; and how many attempts each '
  'has.';

-- Conditions on results: bugle.commands.retry_when and wait_when. A predicate ($.status == "busy") matches if it is
-- true, any other path ($.retry, $.errors[*] ? (@.temporary == true)) if it finds something but false and null.
create or replace function bugle.is_met(p_result jsonb, p_path jsonpath) returns boolean
language sql immutable parallel safe
return coalesce(jsonb_path_query_first(p_result, p_path, silent => true) not in ('false', 'null'), false);
comment on function bugle.is_met is 'Whether a result matches the condition of a command.';

create or replace function bugle.condition_met(p_command text, p_result jsonb) returns text
language sql stable
return (
  select case
    when bugle.is_met(p_result, c.retry_when) then 'retry_when'
    when bugle.is_met(p_result, c.wait_when) then 'wait_when'
  end
  from bugle.commands c
  where c.name = p_command);
comment on function bugle.condition_met is
  'Which condition of a command its result matches: retry_when, wait_when, or none (null).';

-- The rows are locked. Each step of a chain has its own condition: bugle.finish_step.
create or replace function bugle.apply_conditions(inout endings bugle.ending[], out completed bigint[])
language plpgsql
as $$
declare
  v_found record;
  v_outcome record;
  v_ending bugle.ending;
  v_next timestamptz;
  v_left bigint[] := '{}';
begin
  for v_found in
    select u.place, u.result, u.address, j.job, m.condition
    from unnest(endings) with ordinality u (id, state, reason, result, error, code, address, place)
      cross join lateral (
        select l as job from bugle.jobs_live l where l.ctid = u.address limit 1) j
      cross join lateral (
        select bugle.condition_met((j.job).command, u.result) as condition offset 0) m
    where m.condition is not null
      and (j.job).steps is null
  loop
    if v_found.condition = 'wait_when' then
      perform bugle.begin_to_wait(v_found.job, null, null, v_found.result);
    else
      select f.* into v_outcome
      from bugle.fail_attempt(v_found.job, ((v_found.job).id, (v_found.job).claim, (
          select 'the result matches retry_when: ' || c.retry_when::text
          from bugle.commands c
          where c.name = (v_found.job).command), 'retry_when', true, null)::bugle.failed_job, v_found.result) f;
      v_next := least(v_next, v_outcome.retry_at);
      if v_outcome.retry_at is null then
        v_ending := v_outcome.ending;
        v_ending.address := v_found.address;
        endings[v_found.place] := v_ending;
        continue;
      end if;
    end if;
    v_left := v_left || (v_found.job).id;
  end loop;
  if v_left <> '{}' then
    endings := array(select e from unnest(endings) e where e.id <> all (v_left));
    perform bugle.expect(v_next);
    perform bugle.release(v_left);
  end if;
  completed := array(select e.id from unnest(endings) e where e.state = 'completed');
end
$$;
comment on function bugle.apply_conditions is
  'Of jobs that are about to be completed, retry or fail those whose result matches retry_when of their command, and '
  'let those wait that match wait_when. Returns the others, and those that fail.';

-- scheduled, retrying -> ready, when due; also fires schedules. Work that is lost in a crash of the server is repeated.
create or replace function bugle.promote(p_limit integer default 1000)
returns table (promoted integer, next_due_seconds double precision)
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off set jit = off
as $$
declare
  v_queues text[];
  v_promoted integer;
begin
  perform set_config('synchronous_commit', 'off', true);
  perform bugle.release_due();
  if exists (
    select from bugle.schedules s where s.paused_at is null and s.next_at <= now())
  then
    begin
      perform bugle.fire_schedules();
    exception when others then
      null; -- must not stop what is due; maintenance tries the same, and reports it
    end;
  end if;
  with due as (
    update bugle.jobs_live j
    set state = 'ready',
      updated_at = now()
    where j.ctid = any (array(
      select i.ctid
      from bugle.jobs_live i
      -- seed: retries_never_become_ready
      where i.state in ('scheduled', 'retrying')
        and i.run_at <= now()
      order by i.run_at
      limit greatest(coalesce(p_limit, 1000), 0)
      for update skip locked))
    returning j.queue
  )
  select count(*), array_agg(distinct d.queue) into v_promoted, v_queues from due d;
  -- seed: promote_never_rings
  perform bugle.ring(q.queue) from unnest(v_queues) q (queue);
  return query
  select v_promoted, bugle.next_due_seconds();
end
$$;
comment on function bugle.promote is
  'Make due jobs ready and ring for them. Returns how many, and in how many seconds the next is due.';

create or replace function bugle.next_due_seconds() returns double precision
language sql stable set enable_seqscan = off set jit = off
as $$
  -- greatest() ignores null: without this, nothing due would become due now
  select case when d.at is not null then greatest(extract(epoch from d.at - clock_timestamp()), 0) end::double precision
  from (
    select least(
      (select min(j.run_at) from bugle.jobs_live j where j.state in ('scheduled', 'retrying')),
      (select min(j.deadline) from bugle.jobs_live j where j.deadline is not null and j.state <> 'running'),
      (select min(j.answer_by) from bugle.jobs_live j where j.state = 'waiting'),
      (select min(s.next_at) from bugle.schedules s where s.paused_at is null),
      (select min(t.recheck_at) from bugle.claim_positions t)) as at) d
$$;
comment on function bugle.next_due_seconds is
  'In how many seconds something is due: a job, a deadline, an answer, a schedule or a limit. Null if nothing is.';

-- ready, scheduled, retrying, waiting, paused -> failed, when the deadline has passed; waiting -> failed, when the
-- answer is overdue.
create or replace function bugle.expire(p_limit integer default 1000) returns integer
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off set jit = off
as $$
declare
  v_limit constant integer := greatest(coalesce(p_limit, 1000), 0);
  v_expired constant bigint[] := array(
    select j.id from bugle.jobs_live j where bugle.is_expired(j) order by j.deadline limit v_limit);
  v_endings bugle.ending[];
begin
  -- those that wait for others are locked together with them; the rest one by one
  if exists (select from bugle.jobs_live j where j.id = any (v_expired) and j.outstanding is not null) then
    perform bugle.lock_family(v_expired);
  end if;
  v_endings := array(
    select bugle.ending(j.id, 'failed', 'deadline', format('not started before its deadline, %s', j.deadline),
      'deadline')
    from bugle.jobs_live j
    where bugle.is_expired(j)
    order by j.deadline
    limit v_limit
    for update skip locked);
  v_endings := v_endings || array(
    select bugle.ending(j.id, 'failed', 'answer_overdue', format('no answer before %s', j.answer_by), 'answer_overdue')
    from bugle.jobs_live j
    where j.state = 'waiting'
      and j.answer_by <= now()
      and bugle.is_expired(j) is not true
    order by j.answer_by
    limit v_limit
    for update skip locked);
  if exists (select from bugle.settings s where s.unserved_limit is not null) then
    perform bugle.note_unserved();
    v_endings := v_endings || bugle.unserved_too_long(v_limit);
  elsif exists (select from bugle.unserved_routes) then
    delete from bugle.unserved_routes;
  end if;
  perform bugle.end_jobs(v_endings);
  return cardinality(v_endings);
end
$$;
comment on function bugle.expire is
  'Fail jobs whose deadline or answer is overdue, or that no worker has served for too long. Returns how many.';

-- A job of a paused worker or queue counts as served: it can be resumed. What counts is how long nobody has served a
-- route, not how long its jobs have been ready: an old backlog must not fail because its only worker restarts.
create or replace function bugle.note_unserved() returns void
language plpgsql
as $$
begin
  with unserved as materialized (
    select u.queue, bugle.route(u.command, u.steps, 0) as route
    from bugle.unserved u
    where u.paused_workers is null
      and not exists (select from bugle.queues q where q.name = u.queue and q.paused_at is not null)
  ), served as (
    delete from bugle.unserved_routes r
    where not exists (select from unserved u where u.queue = r.queue and u.route = r.route)
  )
  insert into bugle.unserved_routes (queue, route, since)
  select u.queue, u.route, now() from unserved u
  on conflict do nothing;
end
$$;
comment on function bugle.note_unserved is
  'Note the queues and routes with ready jobs that no live worker serves, and forget those that one serves again.';

create or replace function bugle.unserved_too_long(p_limit integer) returns bugle.ending[]
language plpgsql
as $$
begin
  return array(
    select bugle.ending(j.id, 'failed', 'no_executor', format('no worker served the command %s in queue %s for %s',
      bugle.quoted(j.command), bugle.quoted(j.queue), s.unserved_limit), 'no_executor')
    from bugle.settings s
      join bugle.unserved_routes u on u.since <= now() - s.unserved_limit
      cross join lateral (
        select r.id, r.command, r.queue
        from bugle.ready r
        where r.queue = u.queue
          and r.route = u.route
          and r.updated_at <= now() - s.unserved_limit
        limit p_limit
        for update skip locked) j
    order by j.id);
end
$$;
comment on function bugle.unserved_too_long is
  'The endings of ready jobs that no worker has served for settings.unserved_limit; the jobs are locked.';
