-- views: what people read. bugle.jobs itself shows every job in every state.

-- Does not open the partitions of history for a live job.
create or replace function bugle.job(p_id bigint) returns setof bugle.jobs
language plpgsql stable rows 1 security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return query select j.* from bugle.jobs_live j where j.id = p_id;
  if not found then
    return query select j.* from bugle.jobs j where j.id = p_id;
  end if;
end
$$;
comment on function bugle.job is 'One job, wherever it is now. Faster than a query of bugle.jobs by id.';

-- For callers that await results, for all their jobs at once.
create or replace function bugle.endings(p_ids bigint[])
returns table (id bigint, state text, reason text, result jsonb, last_error text)
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
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
    left join bugle.jobs j on j.id = i.id and bugle.is_final(j.state);
end
$$;
comment on function bugle.endings is
  'How jobs ended; only those that have. The state of a job that no longer exists is gone.';

-- Called before the comments of a view's own columns.
create or replace function bugle.copy_comments(p_view regclass, p_from regclass) returns void
language plpgsql
as $$
declare
  v_column record;
begin
  for v_column in
    select v.attname as name, col_description(f.attrelid, f.attnum) as comment
    from pg_attribute v
      join pg_attribute f on f.attrelid = p_from and f.attname = v.attname
    where v.attrelid = p_view
      and v.attnum > 0
      and f.attnum > 0
  loop
    execute format('comment on column %s.%I is %L', p_view, v_column.name, v_column.comment);
  end loop;
end
$$;
comment on function bugle.copy_comments is
  'Describe the columns of a view like those of the table, or view, that they come from. For migrations.';

create or replace view bugle.workers as
select
  r.id, r.name, r.host, r.process_id, r.version,
  case
    when r.stopped_at is not null then 'stopped'
    when r.lost_at is not null then 'lost'
    when r.paused_at is not null then 'paused'
    else 'alive'
  end as state,
  r.queues, r.slots, r.commands, r.running, r.completed, r.failed,
  r.id = k.keeper and r.stopped_at is null as is_keeper, r.started_at, r.seen_at, r.lost_at, r.stopped_at, r.hosts,
  r.short_of, r.overdue, r.id = k.deputy and r.stopped_at is null as is_deputy
from bugle.registrations r
  cross join bugle.keeping k;
comment on view bugle.workers is 'Worker processes: alive ones, and those that left in the last days.';
select bugle.copy_comments('bugle.workers', 'bugle.registrations');
comment on column bugle.workers.id is 'The worker''s number: bugle.jobs.worker.';
comment on column bugle.workers.state is
  'alive, paused, lost (its connection or its heartbeat is gone) or stopped (it signed off).';
comment on column bugle.workers.running is 'How many jobs it ran when it was last seen.';
comment on column bugle.workers.is_keeper is 'Whether it runs maintenance: rescues, promotions, history.';
comment on column bugle.workers.is_deputy is 'Whether it takes over maintenance if the keeper is lost.';

-- Computed on demand, from the registered workers and the first jobs of each queue.
create or replace view bugle.unserved as
select h.queue, h.command, h.id as first_job, h.updated_at as since, h.steps, w.paused_workers
from bugle.ready_heads() h
  cross join lateral (
    select array_agg(r.id order by r.id) filter (where r.paused_at is not null) as paused_workers,
      count(*) filter (where r.paused_at is null) as claiming
    from bugle.registrations r
    where bugle.is_active(r)
      and h.queue = any (r.queues)
      and coalesce(h.steps, array[h.command]) <@ r.commands) w
where w.claiming = 0;
comment on view bugle.unserved is
  'Queues and commands with ready jobs that no live worker serves, or only paused ones; of a chain, the remaining '
  'steps. They start as soon as a worker serves them.';
comment on column bugle.unserved.queue is 'The queue.';
comment on column bugle.unserved.command is 'The command that no live worker serves in it.';
comment on column bugle.unserved.first_job is 'The first of the jobs that wait for one.';
comment on column bugle.unserved.since is 'Since when that job has been ready.';
comment on column bugle.unserved.steps is 'Of a chain: the steps that are left. A worker must serve all of them.';
comment on column bugle.unserved.paused_workers is
  'Live workers that would serve it if they were not paused: see bugle.resume_worker. Null if there are none.';

create or replace view bugle.running_jobs as
select
  j.id, j.command, j.queue, j.attempt, j.claim, j.worker, r.name as worker_name, r.host,
  j.started_at, now() - j.started_at as running_for, j.timeout, j.progress, j.progress_note,
  j.steps[coalesce(j.step, 0) + 1] as step
from bugle.jobs_live j
  left join bugle.registrations r on r.id = j.worker
where bugle.is_running(j);
comment on view bugle.running_jobs is 'What runs now, where, and for how long.';
select bugle.copy_comments('bugle.running_jobs', 'bugle.jobs');
comment on column bugle.running_jobs.worker_name is 'The name of that worker.';
comment on column bugle.running_jobs.host is 'The host it runs on.';
comment on column bugle.running_jobs.running_for is 'How long ago that is.';
comment on column bugle.running_jobs.step is 'Of a chain: the step that runs.';

create or replace view bugle.dead_letters as
select
  j.id, j.command, j.queue, j.payload, j.reason, j.last_error, j.last_error_code, j.attempt, j.crashes,
  j.worker, r.name as worker_name, r.host, j.created_at, j.started_at, j.finished_at,
  case when j.attempt > 0 then coalesce(j.steps[coalesce(j.step, 0) + 1], (
    select s.name
    from bugle.step_records s
    where s.job = j.id
      and s.state in ('failed', 'running')
    order by s.updated_at desc, s.position desc
    limit 1)) end as failed_step
from bugle.jobs j
  left join bugle.registrations r on r.id = j.worker
where j.state = 'failed';
comment on view bugle.dead_letters is 'Jobs that failed for good: why, in which step, when, and on which host.';
select bugle.copy_comments('bugle.dead_letters', 'bugle.jobs');
comment on column bugle.dead_letters.worker_name is 'The name of that worker.';
comment on column bugle.dead_letters.host is 'The node it ran on.';
comment on column bugle.dead_letters.failed_step is
  'The step in which it failed: of the chain, or made by its executor.';

-- A step of a chain that was not begun has no record; one that runs in a job that does not was interrupted, or waits
-- with it.
create or replace view bugle.steps as
select
  s.job, s.position, s.name,
  case
    when s.state is null then 'pending'
    when s.state in ('running', 'retrying') and s.job_state = 'waiting' then 'waiting'
    when s.state in ('running', 'retrying') and s.job_state <> 'running' then 'interrupted'
    else s.state
  end as state,
  coalesce(s.attempts, 0) as attempts, s.first_started_at, s.last_started_at, s.last_ended_at, s.code, s.error,
  s.output, s.worker, w.name as worker_name, w.host, s.within
from (
    select j.id as job, n.position::integer, n.name, r.state, j.state as job_state, r.attempts, r.first_started_at,
      r.last_started_at, r.last_ended_at, r.code, r.error, r.output, r.worker, null::integer as within
    from bugle.jobs j
      cross join lateral unnest(j.steps) with ordinality n (name, position)
      left join bugle.step_records r on r.job = j.id and r.position = n.position
    where j.steps is not null
    union all
    select r.job, r.position, r.name, r.state, j.state, r.attempts, r.first_started_at, r.last_started_at,
      r.last_ended_at, r.code, r.error, r.output, r.worker, r.within
    from bugle.step_records r
      join bugle.jobs j on j.id = r.job
    where r.within is not null) s
  left join bugle.registrations w on w.id = s.worker;
comment on view bugle.steps is
  'The steps of jobs: those of chains, also if they were not begun yet, and those that executors made. State, '
  'tries, first and last time, error, output, and on which host.';
select bugle.copy_comments('bugle.steps', 'bugle.step_records');
comment on column bugle.steps.state is
  'pending, running, retrying (in the same worker), waiting, interrupted, done, skipped or failed.';
comment on column bugle.steps.worker_name is 'That worker''s name.';
comment on column bugle.steps.host is 'Where that worker runs.';
