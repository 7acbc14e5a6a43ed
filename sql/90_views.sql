-- Reading: what people look at. bugle.jobs itself shows every job in every state.

-- One job by its id, without opening every day of history for a job that is still alive.
create or replace function bugle.job(p_id bigint) returns setof bugle.jobs
language plpgsql stable
rows 1
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return query
  select j.* from bugle.jobs_live j where j.id = p_id;
  if not found then
    return query
    select j.* from bugle.jobs j where j.id = p_id;
  end if;
end
$$;
comment on function bugle.job is 'One job, wherever it is now. Faster than a query of bugle.jobs by id.';
revoke execute on function bugle.job from public;

-- Those of these jobs that have ended, or are gone. What callers who await a result ask, for all they wait for at once.
create or replace function bugle.endings(p_ids bigint[])
returns table (id bigint, state text, reason text, result jsonb, last_error text)
language plpgsql stable
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_ids constant bigint[] := array(
    select i.id
    from unnest(p_ids) i (id)
    where not exists (select from bugle.jobs_live j where j.id = i.id));
begin
  if cardinality(v_ids) = 0 then
    return;
  end if;
  return query
  select i.id, coalesce(j.state, 'gone'), j.reason, j.result, j.last_error
  from unnest(v_ids) i (id)
    left join bugle.jobs j on j.id = i.id and j.state in ('completed', 'failed', 'cancelled');
end
$$;
comment on function bugle.endings is 'How jobs ended: only those that have. A job that is nowhere any more is gone.';
revoke execute on function bugle.endings from public;

create or replace view bugle.workers as
select
  r.id,
  r.name,
  r.host,
  r.process_id,
  r.version,
  case
    when r.stopped_at is not null then 'stopped'
    when r.lost_at is not null then 'lost'
    when r.paused_at is not null then 'paused'
    else 'alive'
  end as state,
  r.queues,
  r.slots,
  r.commands,
  r.running,
  r.id = k.keeper and r.stopped_at is null as is_keeper,
  r.started_at,
  r.seen_at,
  r.lost_at,
  r.stopped_at
from bugle.registrations r
  cross join bugle.keeping k;
comment on view bugle.workers is 'Worker processes: alive ones, and those that left in the last days.';

-- Which ready jobs nobody can run. Computed when asked, from the fleet and the heads of the queues.
create or replace view bugle.unserved as
select h.queue, h.command, h.id as first_job, h.updated_at as since
from bugle.ready_heads() h
where not exists (
  select
  from bugle.registrations r
  where r.stopped_at is null
    and r.lost_at is null
    and r.paused_at is null
    and h.queue = any (r.queues)
    and h.command = any (r.commands));
comment on view bugle.unserved is 'Queues and commands with ready jobs that no live worker serves. They start as soon as somebody does.';

create or replace view bugle.queue_stats as
with live as (
  select
    j.queue,
    count(*) filter (where j.state = 'ready') as ready,
    count(*) filter (where j.state = 'running') as running,
    count(*) filter (where j.state = 'scheduled') as scheduled,
    count(*) filter (where j.state = 'retrying') as retrying,
    count(*) filter (where j.state = 'waiting') as waiting,
    count(*) filter (where j.state = 'paused') as paused,
    now() - min(greatest(j.run_at, j.created_at)) filter (where j.state = 'ready') as oldest_ready_age,
    min(j.run_at) filter (where j.state in ('scheduled', 'retrying')) as due_next
  from bugle.jobs_live j
  group by j.queue
), ended as (
  select j.queue, count(*) filter (where j.state = 'completed') as completed, count(*) filter (where j.state = 'failed') as failed
  from bugle.jobs j
  where j.state in ('completed', 'failed')
    and j.finished_at > now() - interval '1 minute'
  group by j.queue
), served as (
  select q.queue, count(*) as workers, sum(q.slots) as slots
  from bugle.registrations r
    cross join lateral unnest(r.queues, r.slots) q (queue, slots)
  where r.stopped_at is null
    and r.lost_at is null
  group by q.queue
), unserved as (
  select u.queue, array_agg(u.command order by u.command) as commands
  from bugle.unserved u
  group by u.queue
)
select
  queue,
  coalesce(l.ready, 0) as ready,
  coalesce(l.running, 0) as running,
  coalesce(l.scheduled, 0) as scheduled,
  coalesce(l.retrying, 0) as retrying,
  coalesce(l.waiting, 0) as waiting,
  coalesce(l.paused, 0) as paused,
  l.oldest_ready_age,
  l.due_next,
  coalesce(e.completed, 0) as completed_last_minute,
  coalesce(e.failed, 0) as failed_last_minute,
  coalesce(s.workers, 0) as workers,
  coalesce(s.slots, 0) as slots,
  u.commands as unserved_commands
from live l
  full join ended e using (queue)
  full join served s using (queue)
  left join unserved u using (queue);
comment on view bugle.queue_stats is 'Each queue: live jobs by state, the oldest ready one, what is due next, what finished in the last minute, who serves it.';

create or replace view bugle.running_jobs as
select
  j.id, j.command, j.queue, j.attempt, j.claim, j.worker, r.name as worker_name, r.host,
  j.started_at, now() - j.started_at as running_for, j.timeout, j.progress, j.progress_note
from bugle.jobs_live j
  left join bugle.registrations r on r.id = j.worker
where j.state like 'running';
comment on view bugle.running_jobs is 'What runs now, where, and for how long.';

create or replace view bugle.dead_letters as
select
  j.id, j.command, j.queue, j.payload, j.reason, j.last_error, j.last_error_code, j.attempt, j.crashes,
  j.worker, r.name as worker_name, r.host, j.created_at, j.started_at, j.finished_at
from bugle.jobs j
  left join bugle.registrations r on r.id = j.worker
where j.state = 'failed';
comment on view bugle.dead_letters is 'Jobs that failed for good: why, when, and on which node.';
