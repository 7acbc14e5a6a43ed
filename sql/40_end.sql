-- complete: running -> completed. Called by workers, a batch at a time; also by executors inside their own transaction.
--
-- Every word about a job carries the claim it was made under, and is refused, row by row, when that claim is no longer
-- current: a worker that was frozen and woke up again must not finish what another is running now. A repeated word about
-- something that has already happened is answered with "repeated", so that it can be sent again after a lost reply.

create or replace function bugle.check_worker(p_worker bigint, p_nonce uuid) returns void
language plpgsql stable
as $$
begin
  if not exists (
    select from bugle.registrations r where r.id = p_worker and r.nonce = p_nonce)
  then
    perform bugle.refuse('JB010', format('there is no worker %s with this nonce', p_worker),
      'Register again with bugle.register.');
  end if;
end
$$;
comment on function bugle.check_worker is 'Refuse whoever is not the worker it says it is.';

-- Where a job that ends now is kept. Today's leaf if it exists, else the newest one: never nowhere.
create or replace function bugle.history_day(p_kind text) returns date
language plpgsql stable
as $$
begin
  return (
    select d.day
    from bugle.history_days d
    where d.kind = p_kind
      and d.retired_at is null
    order by d.day <= (now() at time zone 'utc')::date desc, d.day desc
    limit 1);
end
$$;
comment on function bugle.history_day is 'The day whose leaf takes jobs that end now.';

-- What became of words about jobs that are not held under that claim any more.
create or replace function bugle.verdicts_for_rest(p_worker bigint, p_jobs bugle.held_job[], p_done bigint[])
returns setof bugle.verdict
language plpgsql stable
as $$
begin
  return query
  select h.id, h.claim,
    case
      when exists (
        select
        from bugle.jobs j
        where j.id = h.id
          and j.claim = h.claim
          and j.worker = p_worker
          and j.state <> 'running'
          -- ended by somebody else: an operator, or the rescue of a worker that was lost once too often
          and (j.state not in ('failed', 'cancelled') or j.reason is distinct from 'operator')
          and (j.state <> 'failed' or j.last_error_code is distinct from 'worker_lost'))
      then 'repeated'
      when not exists (select from bugle.jobs j where j.id = h.id) then 'gone'
      else 'fenced'
    end
  from unnest(p_jobs) h
  -- seed: a_stale_call_is_accepted
  where h.id <> all (p_done);
end
$$;
comment on function bugle.verdicts_for_rest is 'For jobs that were not held: repeated, if the worker itself ended the same claim before; gone, if there is no such job; else fenced.';

-- Rows are locked in id order first: two sessions that touch the same rows in different orders would deadlock. They are found
-- one by one, then copied and deleted by their addresses: a join would be planned while the table is small, perhaps the other
-- way round, and then compare every job with every finished one: 400 jobs/s instead of 20,000 until the next ANALYZE. Copied
-- first and deleted afterwards: "with gone as (delete …)" would store every row once more on its way.
create or replace function bugle.complete(p_worker bigint, p_nonce uuid, p_jobs bugle.finished_job[])
returns setof bugle.verdict
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  v_day constant date := bugle.history_day('ended');
  v_is_heard constant boolean := bugle.is_heard();
  v_ids bigint[];
  v_places tid[];
  v_results jsonb[];
  v_is_watched boolean;
  v_followed bugle.followed[];
begin
  perform bugle.check_worker(p_worker, p_nonce);
  select coalesce(array_agg(f.id), '{}'), array_agg(held.ctid), array_agg(f.result), bool_or(held.watched)
  into v_ids, v_places, v_results, v_is_watched
  -- of two words about one job only the one under the newest claim can be current
  -- seed: batch_is_locked_out_of_order
  from (select distinct on (d.id) d.id, d.claim, d.result from unnest(p_jobs) d order by d.id, d.claim desc) f
    cross join lateral (
      select j.ctid, j.watched
      from bugle.jobs_live j
      where j.id = f.id
        -- seed: completion_ignores_the_claim
        and j.claim = f.claim
        and j.worker = p_worker
        and j.state = 'running'
      limit 1
      for update) held;

  if bugle.anything_held() then
    perform bugle.release(v_ids);
  end if;
  if v_is_watched or v_is_heard then
    v_followed := array(
      select (g.id, 'completed', null, g.command, g.queue, g.headers, g.watched, g.on_success, g.on_failure, w.result, null)::bugle.followed
      from unnest(v_places, v_results) w (place, result)
        cross join lateral (
          select j.* from bugle.jobs_live j where j.ctid = w.place limit 1) g
      where g.watched
        or v_is_heard);
  end if;
  -- seed: completed_jobs_are_not_kept
  if (select s.keep_completed from bugle.settings s) then
    insert into bugle.jobs_ended (
      id, state, command, payload, queue, priority, run_at, deadline, timeout, max_attempts, retry_policy, headers,
      unique_key, idempotency_key, idempotency_ttl, order_key, limit_key, fair_key, steps, step, context,
      on_success, on_failure, parent, watched, attempt, crashes, claim, worker, result, last_error, last_error_code,
      progress, progress_note, created_at, updated_at, first_started_at, started_at, finished_at, day)
    overriding system value
    select
      g.id, 'completed', g.command, g.payload, g.queue, g.priority, g.run_at, g.deadline, g.timeout, g.max_attempts,
      g.retry_policy, g.headers, g.unique_key, g.idempotency_key, g.idempotency_ttl, g.order_key, g.limit_key, g.fair_key,
      g.steps, g.step, g.context, g.on_success, g.on_failure, g.parent, g.watched, g.attempt, g.crashes, g.claim, g.worker,
      w.result, g.last_error, g.last_error_code, g.progress, g.progress_note, g.created_at, now(), g.first_started_at,
      g.started_at, now(), v_day
    from unnest(v_places, v_results) w (place, result)
      cross join lateral (
        select j.* from bugle.jobs_live j where j.ctid = w.place limit 1) g;
  end if;
  delete from bugle.jobs_live j
  where j.ctid = any (v_places);
  -- dependants, parents, follow-ups, whoever listens: 42_dependants.sql
  if cardinality(v_followed) > 0 then
    perform bugle.follow(v_followed, v_is_heard);
  end if;

  if cardinality(p_jobs) > cardinality(v_ids) then
    return query
    select v.*
    from bugle.verdicts_for_rest(p_worker,
      array(select (f.id, f.claim)::bugle.held_job from unnest(p_jobs) f), v_ids) v;
  end if;
end
$$;
comment on function bugle.complete is 'Finish jobs this worker holds. Returns only those it could not: repeated, gone, or fenced.';

-- The engine's way out of the live table for everything but completion: the rows are locked and the decision is made.
create or replace function bugle.end_jobs(p_endings bugle.ending[]) returns void
language plpgsql
as $$
declare
  v_is_heard boolean;
  v_followed bugle.followed[];
begin
  if cardinality(p_endings) = 0 then
    return;
  end if;
  v_is_heard := bugle.is_heard();
  v_followed := array(select f from unnest(bugle.move_to_history(p_endings)) f where f.watched or v_is_heard);
  if cardinality(v_followed) > 0 then
    perform bugle.follow(v_followed, v_is_heard);
  end if;
end
$$;
comment on function bugle.end_jobs is 'Move live jobs into history, each with its final state and reason, and do what is due when they end.';

-- Found one by one and deleted by their addresses, as in bugle.complete.
create or replace function bugle.move_to_history(p_endings bugle.ending[]) returns bugle.followed[]
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_followed bugle.followed[];
begin
  perform bugle.release(array(select e.id from unnest(p_endings) e));
  with gone as (
    delete from bugle.jobs_live j
    using (
      select d.*, x.ctid as place
      from (select distinct on (e.id) e.* from unnest(p_endings) e order by e.id) d
        cross join lateral (select l.ctid from bugle.jobs_live l where l.id = d.id limit 1) x) e
    where j.ctid = e.place
    returning j.*, e.state as final_state, e.reason as final_reason, e.result as final_result,
      e.error as final_error, e.code as final_code
  ), kept as (
    insert into bugle.jobs (
      id, state, command, payload, queue, priority, run_at, deadline, timeout, max_attempts, retry_policy, headers,
      unique_key, idempotency_key, idempotency_ttl, order_key, limit_key, fair_key, steps, step, context,
      on_success, on_failure, parent, watched, attempt, crashes, claim, worker, reason, result, last_error, last_error_code, progress, progress_note, answer_token,
      created_at, updated_at, first_started_at, started_at, finished_at, day)
    overriding system value
    select
      g.id, g.final_state, g.command, g.payload, g.queue, g.priority, g.run_at, g.deadline, g.timeout, g.max_attempts,
      g.retry_policy, g.headers, g.unique_key, g.idempotency_key, g.idempotency_ttl, g.order_key, g.limit_key, g.fair_key,
      g.steps, g.step, g.context, g.on_success, g.on_failure, g.parent, g.watched, g.attempt, g.crashes, g.claim, g.worker, g.final_reason, g.final_result,
      coalesce(g.final_error, g.last_error), coalesce(g.final_code, g.last_error_code), g.progress, g.progress_note, g.answer_token,
      g.created_at, now(), g.first_started_at, g.started_at, now(),
      bugle.history_day(case g.final_state when 'failed' then 'failed' else 'ended' end)
    from gone g
    -- seed: cancelled_jobs_are_not_kept
    where g.final_state <> 'completed'
      or (select s.keep_completed from bugle.settings s)
  )
  select array_agg((g.id, g.final_state, g.final_reason, g.command, g.queue, g.headers, g.watched, g.on_success, g.on_failure,
    g.final_result, case when g.final_state <> 'completed' then coalesce(g.final_error, g.last_error) end)::bugle.followed)
  into v_followed
  from gone g;
  return v_followed;
end
$$;
comment on function bugle.move_to_history is 'Move live jobs into history, and tell what is to be known about each by whoever follows it.';

-- Lock those of these jobs that the worker holds under the given claims, in id order.
create or replace function bugle.lock_held(p_worker bigint, p_jobs bugle.held_job[]) returns bigint[]
language sql
as $$
  select coalesce(array_agg(l.id), '{}')
  from (
    select j.id
    from unnest(p_jobs) h
      join bugle.jobs_live j on j.id = h.id
    -- seed: give_back_ignores_the_claim
    where j.claim = h.claim
      and j.worker = p_worker
      and j.state = 'running'
    order by j.id
    for update of j) l
$$;
comment on function bugle.lock_held is 'Lock the jobs a worker holds under these claims; the others are left out.';

-- give back: running -> ready. At shutdown; the attempt is not counted.
create or replace function bugle.give_back(p_worker bigint, p_nonce uuid, p_jobs bugle.held_job[])
returns setof bugle.verdict
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_held bigint[];
begin
  perform bugle.check_worker(p_worker, p_nonce);
  v_held := bugle.lock_held(p_worker, p_jobs);
  update bugle.jobs_live j
  set state = 'ready',
    -- seed: give_back_costs_an_attempt
    attempt = j.attempt - 1,
    updated_at = now()
  where j.id = any (v_held);
  perform bugle.ring(q.queue)
  from (
    select distinct j.queue from bugle.jobs_live j where j.id = any (v_held)) q;
  return query
  select v.* from bugle.verdicts_for_rest(p_worker, p_jobs, v_held) v;
end
$$;
comment on function bugle.give_back is 'Return jobs this worker holds and will not finish. The attempt is not counted.';

-- snooze: running -> scheduled. The executor asks to be run again later; the attempt is not counted.
create or replace function bugle.snooze(p_worker bigint, p_nonce uuid, p_job bugle.held_job, p_for interval)
returns setof bugle.verdict
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_held bigint[];
  v_run_at constant timestamptz := now() + least(greatest(p_for, interval '0'), interval '10 years');
begin
  perform bugle.check_worker(p_worker, p_nonce);
  v_held := bugle.lock_held(p_worker, array[p_job]);
  update bugle.jobs_live j
  set state = 'scheduled',
    run_at = v_run_at,
    attempt = j.attempt - 1,
    updated_at = now()
  where j.id = any (v_held);
  perform bugle.expect(v_run_at);
  perform bugle.release(v_held);
  return query
  select v.* from bugle.verdicts_for_rest(p_worker, array[p_job], v_held) v;
end
$$;
comment on function bugle.snooze is 'Put a job this worker holds off for a while. The attempt is not counted.';

-- cancelled: running -> cancelled. The executor itself says that there is nothing to do any more.
create or replace function bugle.cancel_held(p_worker bigint, p_nonce uuid, p_job bugle.held_job, p_error text)
returns setof bugle.verdict
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_held bigint[];
begin
  perform bugle.check_worker(p_worker, p_nonce);
  v_held := bugle.lock_held(p_worker, array[p_job]);
  perform bugle.end_jobs(array(
    select (h.id, 'cancelled', 'executor', null, bugle.bounded(p_error), null)::bugle.ending
    from unnest(v_held) h (id)));
  return query
  select v.* from bugle.verdicts_for_rest(p_worker, array[p_job], v_held) v;
end
$$;
comment on function bugle.cancel_held is 'End a job this worker holds as cancelled, at its executor''s word.';

-- Reported while running; the newest report counts. A stale claim changes nothing and is not an error.
create or replace function bugle.report_progress(
  p_worker bigint, p_nonce uuid, p_job bugle.held_job, p_progress real, p_note text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.check_worker(p_worker, p_nonce);
  perform set_config('synchronous_commit', 'off', true);
  update bugle.jobs_live j
  set progress = p_progress,
    progress_note = left(p_note, 1000),
    updated_at = now()
  where j.id = p_job.id
    and j.claim = p_job.claim
    and j.worker = p_worker
    and j.state = 'running';
  return found;
end
$$;
comment on function bugle.report_progress is 'Note how far a running job is. Returns whether this worker still holds it.';

-- complete, for workers that tell where the rows lie (claimed_job.address): in one pass less, and without an index. They name jobs in
-- the order of their ids, in which rows are locked everywhere: sorting them here once more would cost a twentieth of it all. Only for jobs
-- that stand alone, while no command has a limit and nobody listens; and if but one of them is not where it was, because it has
-- reported progress, was fenced, or was ended before, then all of them by bugle.complete: it locks in id order, and half a batch
-- locked before it begins could make a deadlock.
create or replace function bugle.complete_at(
  p_worker bigint, p_nonce uuid, p_ids bigint[], p_claims bigint[], p_results jsonb[], p_addresses tid[])
returns setof bugle.verdict
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  v_day constant date := bugle.history_day('ended');
  v_is_held constant boolean := bugle.anything_held();
  v_found bigint;
  v_gone bigint;
begin
  if cardinality(p_addresses) = cardinality(p_ids) and not bugle.is_heard()
    and (not v_is_held or not exists (select from bugle.commands t where t.max_running is not null))
  then
    begin
      perform bugle.check_worker(p_worker, p_nonce);
      if (select s.keep_completed from bugle.settings s) then
        insert into bugle.jobs_ended (
          id, state, command, payload, queue, priority, run_at, deadline, timeout, max_attempts, retry_policy, headers,
          unique_key, idempotency_key, idempotency_ttl, order_key, limit_key, fair_key, steps, step, context,
          on_success, on_failure, parent, attempt, crashes, claim, worker, result, last_error, last_error_code,
          progress, progress_note, created_at, updated_at, first_started_at, started_at, finished_at, day)
        overriding system value
        select
          g.id, 'completed', g.command, g.payload, g.queue, g.priority, g.run_at, g.deadline, g.timeout, g.max_attempts,
          g.retry_policy, g.headers, g.unique_key, g.idempotency_key, g.idempotency_ttl, g.order_key, g.limit_key, g.fair_key,
          g.steps, g.step, g.context, g.on_success, g.on_failure, g.parent, g.attempt, g.crashes, g.claim, g.worker,
          f.result, g.last_error, g.last_error_code, g.progress, g.progress_note, g.created_at, now(), g.first_started_at,
          g.started_at, now(), v_day
        from unnest(p_ids, p_claims, p_results, p_addresses) f (id, claim, result, address)
          cross join lateral (
            select j.*
            from bugle.jobs_live j
            where j.ctid = f.address
              and j.id = f.id
              and j.claim = f.claim
              and j.worker = p_worker
              and j.state = 'running'
              and j.watched is null
            limit 1
            for update) g;
        get diagnostics v_found = row_count;
      else
        select count(*) into v_found
        from unnest(p_ids, p_claims, p_addresses) f (id, claim, address)
          cross join lateral (
            select
            from bugle.jobs_live j
            where j.ctid = f.address
              and j.id = f.id
              and j.claim = f.claim
              and j.worker = p_worker
              and j.state = 'running'
              and j.watched is null
            limit 1
            for update) g;
      end if;
      if v_found = cardinality(p_ids) then
        if v_is_held then
          perform bugle.release_at(p_addresses);
        end if;
        delete from bugle.jobs_live j
        where j.ctid = any (p_addresses);
        get diagnostics v_gone = row_count;
      end if;
      -- a row that moved while it was being locked is copied, and not where it was; one that was named twice is copied twice
      if v_gone is distinct from cardinality(p_ids) then
        raise exception using errcode = '09000';
      end if;
      return;
    exception
      when sqlstate '09000' then null;
    end;
  end if;
  return query
  select v.*
  from bugle.complete(p_worker, p_nonce, array(
    select (f.id, f.claim, f.result)::bugle.finished_job from unnest(p_ids, p_claims, p_results) f (id, claim, result))) v;
end
$$;
comment on function bugle.complete_at is 'As bugle.complete, for jobs whose addresses are known from their claim. Faster; jobs that have moved are found by their ids.';

-- bugle.release for these, which no command's limit counts.
create or replace function bugle.release_at(p_addresses tid[]) returns void
language plpgsql
as $$
begin
  perform bugle.ring(q.queue)
  from (
    select distinct j.queue, j.order_key is not null as is_ordered
    from unnest(p_addresses) a (address)
      cross join lateral (
        select l.queue, l.order_key from bugle.jobs_live l where l.ctid = a.address limit 1) j) q
  where q.is_ordered
    or exists (select from bugle.queues l where l.name = q.queue and l.is_limited);
end
$$;
comment on function bugle.release_at is 'Ring for whoever was held back by the jobs at these addresses.';
