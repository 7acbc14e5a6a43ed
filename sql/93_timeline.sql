-- timeline: what happened to one job, in one call.
--
-- It is read from where each fact is kept: the job itself, bugle.attempts, bugle.steps and bugle.changes. An attempt
-- that completed or cancelled its job has no row of its own: the job's row tells of it.

create or replace function bugle.timeline(p_id bigint)
returns table (
  at timestamptz, event text, attempt integer, step text, worker bigint, worker_name text, code text, message text,
  who text, application text)
language plpgsql stable
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_job bugle.jobs;
begin
  select j.* into v_job from bugle.job(p_id) j;
  if not found then
    return;
  end if;
  return query
  with events as (
    select v_job.created_at as at, 0 as rank, 'enqueued' as event, null::integer as attempt, null::text as step,
      null::bigint as worker, null::text as code,
      format('command %s in queue %s', v_job.command, v_job.queue) as message, v_job.enqueued_by as who,
      nullif(v_job.enqueued_from, '') as application
    union all
    select v_job.run_at, 1, 'due', null, null, null, null, null, null, null
    where v_job.run_at > v_job.created_at
    union all
    select a.started_at, 2, 'started', a.attempt, null, a.worker, null, null, null, null
    from bugle.attempts a
    where a.job = p_id
      and a.started_at is not null
    union all
    select a.ended_at, 4, a.outcome, a.attempt, null, a.worker, a.code,
      case when a.times > 1 then format('%s times in a row', a.times) else a.error end, null, null
    from bugle.attempts a
    where a.job = p_id
    union all
    select v_job.started_at, 2, 'started', v_job.attempt, null, v_job.worker, null, null, null, null
    where v_job.started_at is not null
      and not exists (select from bugle.attempts a where a.job = p_id and a.claim = v_job.claim)
    union all
    select coalesce(s.last_ended_at, s.last_started_at), 3, 'step_' || s.state, null, s.name, s.worker, s.code, s.error,
      null, null
    from bugle.steps s
    where s.job = p_id
      and s.last_started_at is not null
    union all
    select c.changed_at, 5, c.verb, null, (
        select s.name from bugle.steps s where s.job = p_id and s.position = c.step and s.within is null),
      null, null, concat_ws(': ', nullif(concat_ws(' -> ', c.from_state, c.to_state), ''), c.note), c.who, c.application
    from bugle.changes c
    where c.job = p_id
    union all
    -- what its last attempt said is in the row of that attempt
    select v_job.finished_at, 6, v_job.state, case v_job.state when 'completed' then nullif(v_job.attempt, 0) end, null,
      case v_job.state when 'completed' then v_job.worker end, null,
      concat_ws(': ', bugle.describe_reason(v_job.state, v_job.reason),
        case when v_job.state = 'failed' and not exists (
          select from bugle.attempts a where a.job = p_id and a.claim = v_job.claim) then v_job.last_error end),
      null, null
    where v_job.finished_at is not null
  )
  select e.at, e.event, e.attempt, e.step, e.worker, r.name, e.code, nullif(e.message, ''), e.who, e.application
  from events e
    left join bugle.registrations r on r.id = e.worker
  order by e.at, e.rank, e.attempt;
end
$$;
comment on function bugle.timeline is
  'What happened to a job, in order: its attempts with their outcomes, its steps, what operators changed, who answered '
  'it, and how it ended.';
