-- end: running -> completed, ready, scheduled, cancelled; and every move of a job between the live table and history.
-- Called by workers, a batch at a time; bugle.complete also by executors inside their own transaction.
--
-- Every call about a job names its claim, and is rejected, row by row, if that claim is no longer current: a worker
-- that was frozen must not finish a job that another one runs by now. A call that is repeated after a lost reply gets
-- the verdict "repeated".

create or replace function bugle.ending(
  p_id bigint, p_state text, p_reason text default null, p_error text default null, p_code text default null,
  p_result jsonb default null, p_address tid default null)
returns bugle.ending
language sql immutable parallel safe
return (p_id, p_state, p_reason, p_result, p_error, p_code, p_address)::bugle.ending;
comment on function bugle.ending is 'How a job is to end.';

create or replace function bugle.lock_held(p_worker bigint, p_nonce uuid, p_job bugle.held_job) returns bugle.jobs_live
language plpgsql
as $$
declare
  v_job bugle.jobs_live;
begin
  perform bugle.check_worker(p_worker, p_nonce);
  select j.* into v_job
  from bugle.jobs_live j
  where bugle.is_held_by(j, p_worker, p_job.id, p_job.claim)
  for update;
  return v_job;
end
$$;
comment on function bugle.lock_held is 'Lock a job that a worker holds under this claim; null if it does not.';

create or replace function bugle.verdict_on(p_worker bigint, p_job bugle.held_job) returns text
language plpgsql
as $$
declare
  v_verdict text;
begin
  if exists (
    select
    from bugle.jobs j
    where j.id = p_job.id
      and j.claim = p_job.claim
      and j.worker = p_worker
      and j.state <> 'running'
      -- not ended by an operator, nor by a rescue
      and (j.state not in ('failed', 'cancelled') or j.reason is distinct from 'operator')
      and (j.state <> 'failed' or j.last_error_code is distinct from 'worker_lost'))
  then
    return 'repeated';
  end if;
  v_verdict := case when exists (select from bugle.jobs j where j.id = p_job.id) then 'fenced' else 'gone' end;
  insert into bugle.late_updates (worker, job, claim, verdict, late_by)
  select p_worker, p_job.id, p_job.claim, v_verdict, clock_timestamp() - coalesce((
      select a.ended_at from bugle.attempts a where a.job = p_job.id and a.claim = p_job.claim), (
      select j.finished_at from bugle.jobs j where j.id = p_job.id and j.claim = p_job.claim))
  where p_job.id is not null
    and p_job.claim is not null;
  return v_verdict;
end
$$;
comment on function bugle.verdict_on is
  'For a job that is not held: repeated, if the worker itself ended the same claim before; gone, if there is no such '
  'job; else fenced. The last two are late updates, and recorded.';

create or replace function bugle.verdicts_for_rest(p_worker bigint, p_jobs bugle.held_job[], p_done bigint[])
returns setof bugle.verdict
language plpgsql
as $$
begin
  return query
  select h.id, h.claim, bugle.verdict_on(p_worker, h)
  from unnest(p_jobs) h
  -- seed: a_stale_call_is_accepted
  where h.id <> all (p_done);
end
$$;
comment on function bugle.verdicts_for_rest is 'The verdicts on those of these jobs that were not held.';

-- Today's leaf if it exists, else the newest one, so that an outcome can always be stored.
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

-- The rows are locked. The tempting form is "update bugle.jobs set state = …, day = …", which moves the row between
-- partitions. Then every session that waits for a lock on the row fails with 40001 ("already moved to another
-- partition"), where now it finds the row gone and searches history: an enqueue of a dependant, an answer, an
-- operator's verb, an executor's own transaction. In batches of 500 it takes 3.0 µs per job, after a pass that locks
-- 4.1; this takes 4.2 with that pass.
--
-- The rows are copied by their addresses and then deleted: "with gone as (delete …)" would store every row once more.
--
-- Created from the catalog, so that a new column is moved without being listed: all columns are copied, except those
-- that the outcome sets, and those that apply to live jobs only.
do $do$
declare
  c_set constant text[] := '{state,reason,result,last_error,last_error_code,updated_at,finished_at,day}';
  c_live_only constant text[] := '{paused_from,answer_by,answer,outstanding}';
  v_copied constant text[] := array(
    select quote_ident(a.attname)
    from pg_attribute a
    where a.attrelid = 'bugle.jobs'::regclass
      and a.attnum > 0
      and not a.attisdropped
      and a.attname <> all (c_set || c_live_only)
    order by a.attnum);
begin
  execute format($create$
create or replace function bugle.move_to_history(p_endings bugle.ending[]) returns void
language plpgsql
as $$
begin
  insert into bugle.jobs (%s, %s)
  overriding system value
  select j.%s,
    e.state, e.reason, e.result, coalesce(e.error, j.last_error), coalesce(e.code, j.last_error_code), now(), now(),
    case e.state when 'failed' then (select bugle.history_day('failed')) else (select bugle.history_day('ended')) end
  from unnest(p_endings) e
    cross join lateral (
      select l.* from bugle.jobs_live l where l.ctid = e.address limit 1) j
  -- seed: completed_jobs_are_not_kept, cancelled_jobs_are_not_kept
  where e.state <> 'completed'
    or (select s.keep_completed from bugle.settings s);
  if exists (select from unnest(p_endings) e where e.state = 'failed') then
    insert into bugle.dead_letter_counts (queue, reason, jobs)
    select j.queue, coalesce(e.reason, 'unknown'), count(*)
    from unnest(p_endings) e
      cross join lateral (
        select l.queue from bugle.jobs_live l where l.ctid = e.address limit 1) j
    where e.state = 'failed'
    group by j.queue, coalesce(e.reason, 'unknown');
  end if;
  delete from bugle.jobs_live j
  where j.ctid = any (array(select e.address from unnest(p_endings) e));
end
$$
$create$, array_to_string(v_copied, ', '), array_to_string(c_set, ', '), array_to_string(v_copied, ', j.'));
  execute format($create$
create or replace function bugle.move_completed(p_addresses tid[], p_results jsonb[]) returns void
language plpgsql
as $$
begin
  -- seed: completed_jobs_are_not_kept
  if (select s.keep_completed from bugle.settings s) then
    insert into bugle.jobs (%s, %s)
    overriding system value
    select j.%s,
      'completed', null, e.result, j.last_error, j.last_error_code, now(), now(), (select bugle.history_day('ended'))
    from unnest(p_addresses, p_results) e (address, result)
      cross join lateral (
        select l.* from bugle.jobs_live l where l.ctid = e.address limit 1) j;
  end if;
  delete from bugle.jobs_live j
  where j.ctid = any (p_addresses);
end
$$
$create$, array_to_string(v_copied, ', '), array_to_string(c_set, ', '), array_to_string(v_copied, ', j.'));
end
$do$;
comment on function bugle.move_to_history is
  'Move live jobs that are located into history, each with its final state and reason.';
comment on function bugle.move_completed is
  'As bugle.move_to_history, for jobs that are completed and about which nobody else has to know.';

-- The jobs keep their ids and bugle.attempts; attempts are counted from 0. Created from the catalog, like
-- bugle.move_to_history: columns that are not reset keep their values.
do $do$
declare
  c_now constant text[] := '{run_at,updated_at}';
  c_zero constant text[] := '{attempt,crashes}';
  c_null constant text[] := '{deadline,worker,reason,result,paused_from,progress,progress_note,answer_by,answer_token,
    answer,outstanding,finished_at,day}';
  v_names constant text[] := array(
    select quote_ident(a.attname)
    from pg_attribute a
    where a.attrelid = 'bugle.jobs'::regclass
      and a.attnum > 0
      and not a.attisdropped
      and a.attname <> all (c_null)
    order by a.attnum);
  v_values constant text[] := array(
    select case
        when n.name = 'state' then '''ready'''
        when n.name = any (c_now) then 'now()'
        when n.name = any (c_zero) then '0'
        else 'g.' || n.name end
    from unnest(v_names) with ordinality n (name, place)
    order by n.place);
begin
  execute format($create$
create or replace function bugle.move_to_live(p_ids bigint[]) returns void
language plpgsql
as $$
declare
  v_moved bigint;
begin
  perform set_config('bugle.skip_checks', 'on', true);
  with gone as (
    delete from bugle.jobs j
    where j.id = any (p_ids)
      -- seed: completed_jobs_can_be_restarted
      and j.state in ('failed', 'cancelled')
    returning j.*
  ), live as (
    insert into bugle.jobs_live (%s)
    overriding system value
    select %s from gone g order by g.id
    -- each further look at the rows of "gone" would read all of their columns once more
    returning command, steps
  ), chains as (
    select bugle.note_chain(c.command, c.steps)
    from (select distinct l.command, l.steps from live l where l.steps is not null) c
  )
  select (select count(*) from live), (select count(*) from chains) into v_moved;
  perform set_config('bugle.skip_checks', '', true);
  if v_moved <> cardinality(p_ids) then
    raise exception 'only %% of %% jobs are failed or cancelled', v_moved, cardinality(p_ids);
  end if;
end
$$
$create$, array_to_string(v_names, ', '), array_to_string(v_values, ', '));
end
$do$;
comment on function bugle.move_to_live is 'Move failed and cancelled jobs back into the live table, ready.';

-- Read before the move, for 42_dependants.sql: if completed jobs are not kept, the row is gone afterwards.
create or replace function bugle.ended_jobs(p_endings bugle.ending[], p_all boolean) returns bugle.ended_job[]
language plpgsql
as $$
begin
  return array(
    select (j.id, e.state, e.reason, j.command, j.queue, j.headers, j.awaited, j.on_success, j.on_failure, e.result,
      case when e.state <> 'completed' then coalesce(e.error, j.last_error) end)::bugle.ended_job
    from unnest(p_endings) e
      cross join lateral (
        select l.* from bugle.jobs_live l where l.ctid = e.address limit 1) j
    where j.awaited
      or p_all);
end
$$;
comment on function bugle.ended_jobs is
  'What has to be known about located jobs when they have ended: about awaited ones, or all.';

create or replace function bugle.end_located(p_endings bugle.ending[], p_is_awaited boolean) returns void
language plpgsql
as $$
declare
  v_is_heard constant boolean := bugle.is_heard();
  v_ended bugle.ended_job[];
begin
  if bugle.has_limits_or_order() then
    perform bugle.release(array(select e.id from unnest(p_endings) e));
  end if;
  if p_is_awaited or v_is_heard then
    v_ended := bugle.ended_jobs(p_endings, v_is_heard);
  end if;
  perform bugle.move_to_history(p_endings);
  if cardinality(v_ended) > 0 then
    perform bugle.after_end(v_ended, v_is_heard);
  end if;
end
$$;
comment on function bugle.end_located is
  'End jobs that are locked and located, release what they held back, and follow up.';

-- Each is looked up by its id: a join planned while the table is small may start from the other side, and then compare
-- every job with every ending.
create or replace function bugle.locate(
  p_endings bugle.ending[], out endings bugle.ending[], out is_awaited boolean)
language plpgsql
as $$
begin
  select array_agg(bugle.ending(d.id, d.state, d.reason, d.error, d.code, d.result, j.ctid)), bool_or(j.awaited)
  into endings, is_awaited
  from (
    select distinct on (e.id) e.* from unnest(p_endings) e order by e.id) d
    cross join lateral (
      -- Most are locked already. If two jobs that a new one needs fail at the same time, both sessions find it: the
      -- second waits here, and finds it gone.
      select l.ctid, l.awaited from bugle.jobs_live l where l.id = d.id limit 1 for update) j;
end
$$;
comment on function bugle.locate is
  'Lock the live jobs that are to end, in the order of their ids, and note where they are.';

create or replace function bugle.end_jobs(p_endings bugle.ending[]) returns void
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set jit = off
as $$
declare
  v_found record;
begin
  if cardinality(p_endings) = 0 then
    return;
  end if;
  select l.* into v_found from bugle.locate(p_endings) l;
  perform bugle.end_located(v_found.endings, v_found.is_awaited);
end
$$;
comment on function bugle.end_jobs is
  'End live jobs that are locked, each with its final state and reason, and do what is due when they end.';

-- complete: running -> completed. Jobs are named in the order of their ids, each once, and locked in this order: two
-- sessions that lock the same rows in different orders would deadlock.
--
-- A row is first looked up by its address, if the worker knows it from the claim; a row that was updated since, with
-- its progress for example, by its id. The tempting form is "join bugle.jobs_live j on j.id = f.id": a plan made while
-- the table is small may start from the other side, and then compares every job with every finished one: 400 jobs/s
-- instead of 20,000 until the next ANALYZE.
create or replace function bugle.complete_held(
  p_worker bigint, p_nonce uuid, p_ids bigint[], p_claims bigint[], p_results jsonb[], p_addresses tid[])
returns bigint[]
language plpgsql
as $$
declare
  v_ids bigint[];
  v_addresses tid[];
  v_results jsonb[];
  v_endings bugle.ending[];
  v_is_awaited boolean;
begin
  perform bugle.check_worker(p_worker, p_nonce);
  select array_agg(f.id), array_agg(coalesce(here.ctid, moved.ctid)), array_agg(f.result),
    bool_or(coalesce(here.awaited, moved.awaited))
  into v_ids, v_addresses, v_results, v_is_awaited
  from unnest(p_ids, p_claims, p_results, p_addresses) f (id, claim, result, address)
    left join lateral (
      select j.ctid, j.awaited
      from bugle.jobs_live j
      where j.ctid = f.address
        -- seed: completion_ignores_the_claim
        and bugle.is_held_by(j, p_worker, f.id, f.claim)
      limit 1
      for update) here on true
    left join lateral (
      select j.ctid, j.awaited
      from bugle.jobs_live j
      where here.ctid is null
        -- seed: completion_ignores_the_claim
        and bugle.is_held_by(j, p_worker, f.id, f.claim)
      limit 1
      for update) moved on true
  where here.ctid is not null
    or moved.ctid is not null;
  if v_ids is null then
    return '{}';
  end if;
  -- as with templates: while there are no conditions, this is all they cost
  if v_is_awaited is not true and pg_sequence_last_value('bugle.conditions') is null and not bugle.is_heard()
    and not bugle.has_limits_or_order()
  then
    perform bugle.move_completed(v_addresses, v_results);
    return v_ids;
  end if;
  v_endings := array(
    select bugle.ending(e.id, 'completed', p_result => e.result, p_address => e.address)
    from unnest(v_ids, v_results, v_addresses) e (id, result, address));
  if pg_sequence_last_value('bugle.conditions') is not null then
    select c.endings, c.completed into v_endings, v_ids from bugle.apply_conditions(v_endings) c;
  end if;
  if cardinality(v_endings) > 0 then
    perform bugle.end_located(v_endings, v_is_awaited);
  end if;
  return coalesce(v_ids, '{}');
end
$$;
comment on function bugle.complete_held is
  'Complete those of these jobs that the worker holds. Returns the ids of those that are completed.';

-- What a condition of the command (50_retry.sql) made of the job is not "repeated".
create or replace function bugle.verdicts_of_completion(p_worker bigint, p_jobs bugle.held_job[], p_done bigint[])
returns setof bugle.verdict
language plpgsql
as $$
begin
  return query
  select v.id, v.claim, case when v.verdict = 'repeated' then coalesce((
      select case
          when j.state = 'waiting' and j.result is not null and c.wait_when is not null then 'wait_when'
          when j.last_error_code = 'retry_when' and c.retry_when is not null then 'retry_when'
        end
      from bugle.jobs j
        join bugle.commands c on c.name = j.command
      where j.id = v.id
        and j.state <> 'completed'), v.verdict) else v.verdict end
  from bugle.verdicts_for_rest(p_worker, p_jobs, p_done) v;
end
$$;
comment on function bugle.verdicts_of_completion is
  'The verdicts on those of these jobs that a call did not complete: those of verdicts_for_rest, or the condition of '
  'the command that its result matched: retry_when or wait_when.';

create or replace function bugle.complete(p_worker bigint, p_nonce uuid, p_jobs bugle.finished_job[])
returns setof bugle.verdict
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $$
declare
  v_done bigint[];
begin
  select bugle.complete_held(p_worker, p_nonce, array_agg(f.id), array_agg(f.claim), array_agg(f.result), null)
  into v_done
  -- of two calls about one job, only the one with the newest claim can be current
  -- seed: batch_is_locked_out_of_order
  from (select distinct on (d.id) d.id, d.claim, d.result from unnest(p_jobs) d order by d.id, d.claim desc) f;
  if cardinality(p_jobs) > cardinality(v_done) then
    return query
    select v.*
    from bugle.verdicts_of_completion(p_worker,
      array(select (f.id, f.claim)::bugle.held_job from unnest(p_jobs) f), v_done) v;
  end if;
end
$$;
comment on function bugle.complete is
  'Complete jobs this worker holds. Returns only those that were not completed: repeated, gone or fenced, or the '
  'condition of their command that the result matched: retry_when or wait_when.';

-- Workers sort the jobs: doing it here would cost 5 % of the call.
create or replace function bugle.complete_at(
  p_worker bigint, p_nonce uuid, p_ids bigint[], p_claims bigint[], p_results jsonb[], p_addresses tid[])
returns setof bugle.verdict
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $$
declare
  v_done bigint[];
begin
  if exists (select from unnest(p_ids, p_ids[2:]) i (this, next) where i.this >= i.next) then
    return query
    select v.*
    from bugle.complete(p_worker, p_nonce, array(
      select (f.id, f.claim, f.result)::bugle.finished_job
      from unnest(p_ids, p_claims, p_results) f (id, claim, result))) v;
    return;
  end if;
  v_done := bugle.complete_held(p_worker, p_nonce, p_ids, p_claims, p_results, p_addresses);
  if cardinality(p_ids) > cardinality(v_done) then
    return query
    select v.*
    from bugle.verdicts_of_completion(p_worker,
      array(select (f.id, f.claim)::bugle.held_job from unnest(p_ids, p_claims) f (id, claim)), v_done) v;
  end if;
end
$$;
comment on function bugle.complete_at is
  'As bugle.complete, for jobs whose addresses are known from their claim. Faster; jobs that have moved are found by '
  'their ids.';

-- All or none, in a transaction with the writes of these jobs: what a job wrote that is no longer held must not be
-- committed, even if the caller has sent the COMMIT already.
create or replace function bugle.complete_all(
  p_worker bigint, p_nonce uuid, p_ids bigint[], p_claims bigint[], p_results jsonb[], p_addresses tid[])
returns setof bugle.verdict
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_verdict bugle.verdict;
begin
  for v_verdict in
    select v.* from bugle.complete_at(p_worker, p_nonce, p_ids, p_claims, p_results, p_addresses) v
  loop
    -- what a condition of the command made of a job is an outcome, too
    if v_verdict.verdict not in ('retry_when', 'wait_when') then
      perform bugle.refuse('JB031', format('job %s is no longer held under claim %s: %s', v_verdict.id, v_verdict.claim,
        v_verdict.verdict), 'Roll back: another worker runs this job now.');
    end if;
    return next v_verdict;
  end loop;
end
$$;
comment on function bugle.complete_all is
  'As bugle.complete_at, in a transaction with what these jobs wrote: raises an error unless all of them are held.';

-- give back: running -> ready. At shutdown; the attempt is not counted.
create or replace function bugle.give_back(p_worker bigint, p_nonce uuid, p_jobs bugle.held_job[])
returns setof bugle.verdict
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_held bigint[];
begin
  perform bugle.check_worker(p_worker, p_nonce);
  v_held := array(
    select j.id
    from unnest(p_jobs) h
      -- seed: give_back_ignores_the_claim
      join bugle.jobs_live j on bugle.is_held_by(j, p_worker, h.id, h.claim)
    order by j.id
    for update of j);
  perform bugle.record_attempt(j, 'given_back') from bugle.jobs_live j where j.id = any (v_held);
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
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_job constant bugle.jobs_live := bugle.lock_held(p_worker, p_nonce, p_job);
  v_run_at constant timestamptz := now() + least(greatest(p_for, interval '0'), interval '10 years');
begin
  if v_job.id is null then
    return next (p_job.id, p_job.claim, bugle.verdict_on(p_worker, p_job))::bugle.verdict;
    return;
  end if;
  -- a job may snooze a thousand times, and still be the one row it is
  update bugle.attempts a
  set claim = v_job.claim,
    worker = v_job.worker,
    ended_at = now(),
    times = a.times + 1
  where a.job = v_job.id
    and a.claim = v_job.claim - 1
    and a.outcome = 'snoozed';
  if not found then
    perform bugle.record_attempt(v_job, 'snoozed');
  end if;
  update bugle.jobs_live j
  set state = 'scheduled',
    run_at = v_run_at,
    attempt = j.attempt - 1,
    updated_at = now()
  where j.id = v_job.id;
  perform bugle.expect(v_run_at);
  perform bugle.release(array[v_job.id]);
end
$$;
comment on function bugle.snooze is 'Postpone a job this worker holds. The attempt is not counted.';

-- cancel: running -> cancelled. The executor finds that there is nothing left to do.
create or replace function bugle.cancel_held(p_worker bigint, p_nonce uuid, p_job bugle.held_job, p_error text)
returns setof bugle.verdict
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_job constant bugle.jobs_live := bugle.lock_held(p_worker, p_nonce, p_job);
begin
  if v_job.id is null then
    return next (p_job.id, p_job.claim, bugle.verdict_on(p_worker, p_job))::bugle.verdict;
    return;
  end if;
  perform bugle.end_jobs(array[bugle.ending(v_job.id, 'cancelled', 'executor', bugle.bounded(p_error))]);
end
$$;
comment on function bugle.cancel_held is 'End a job this worker holds as cancelled, at the request of its executor.';

-- The newest report counts. A stale claim changes nothing and is not an error.
create or replace function bugle.report_progress(
  p_worker bigint, p_nonce uuid, p_job bugle.held_job, p_progress real, p_note text)
returns boolean
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.check_worker(p_worker, p_nonce);
  perform set_config('synchronous_commit', 'off', true);
  update bugle.jobs_live j
  set progress = p_progress,
    progress_note = left(p_note, 1000),
    updated_at = now()
  where bugle.is_held_by(j, p_worker, p_job.id, p_job.claim);
  return found;
end
$$;
comment on function bugle.report_progress is
  'Store how far a running job is. Returns whether this worker still holds it.';
