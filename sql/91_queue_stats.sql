-- How each queue is doing now. Costs as much as there are queues and commands, with ten jobs waiting or ten million.

-- Counted by index, up to 10,000 for each route of a queue; beyond that estimated from the statistics of ANALYZE. All
-- routes of a queue are counted at once: their index has the route as an expression, and the planner takes that for a
-- reason to visit every row. A million jobs in 750 routes then took 0.8 s, and seconds if they were not in memory.
create or replace function bugle.live_counts()
returns table (
  queue text, ready bigint, running bigint, scheduled bigint, retrying bigint, waiting bigint, paused bigint,
  oldest_ready_age interval, due_next timestamptz, is_estimate boolean)
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $$
declare
  v_cap constant bigint := 10000;
  v_live constant double precision := (
    select greatest(c.reltuples, 0) from pg_class c where c.oid = 'bugle.jobs_live'::regclass);
begin
  return query
  with queues_with_ready as materialized (
    select h.queue, v_cap * count(*) as cap, min(bugle.oldest_ready(h.queue, h.route)) as at
    from bugle.ready_heads() h
    group by h.queue
  -- at: since when the oldest is ready, or when the first is due
  ), counts (queue, state, jobs, at, is_capped) as (
    select h.queue, 'ready', c.jobs, h.at, c.jobs = h.cap
    from queues_with_ready h
      cross join lateral (select count(*) as jobs from (select from bugle.ready_in(h.queue) limit h.cap) r) c
    union all
    select j.queue, 'running', count(*), null, false
    from bugle.jobs_live j
    where bugle.is_running(j)
    group by j.queue
    union all
    select d.queue, d.state, count(*), min(d.run_at), false
    from (
      select j.queue, j.state, j.run_at
      from bugle.jobs_live j
      where j.state in ('scheduled', 'retrying')
      order by j.run_at
      limit 5 * v_cap) d
    group by d.queue, d.state
    union all
    select w.queue, 'waiting', count(*), null, false
    from (select j.queue from bugle.jobs_live j where j.state = 'waiting' order by j.answer_by limit 5 * v_cap) w
    group by w.queue
    union all
    select p.queue, 'paused', count(*), null, false
    from (select j.queue from bugle.jobs_live j where j.state = 'paused' order by j.queue limit 5 * v_cap) p
    group by p.queue
  ), queues as materialized (
    select
      c.queue,
      coalesce(sum(c.jobs) filter (where c.state = 'ready'), 0)::bigint as ready,
      coalesce(sum(c.jobs) filter (where c.state = 'running'), 0)::bigint as running,
      coalesce(sum(c.jobs) filter (where c.state = 'scheduled'), 0)::bigint as scheduled,
      coalesce(sum(c.jobs) filter (where c.state = 'retrying'), 0)::bigint as retrying,
      coalesce(sum(c.jobs) filter (where c.state = 'waiting'), 0)::bigint as waiting,
      coalesce(sum(c.jobs) filter (where c.state = 'paused'), 0)::bigint as paused,
      now() - min(c.at) filter (where c.state = 'ready') as oldest_ready_age,
      min(c.at) filter (where c.state <> 'ready') as due_next,
      bool_or(c.is_capped) as is_capped
    from counts c
    group by c.queue
  ), shares as (
    select u.queue, u.share
    from pg_stats s
      cross join lateral unnest(s.most_common_vals::text::text[], s.most_common_freqs) u (queue, share)
    where s.schemaname = 'bugle'
      and s.tablename = 'jobs_live'
      and s.attname = 'queue'
      and not s.inherited
  )
  select
    q.queue,
    case
      when q.is_capped then greatest(q.ready,
        round(v_live * coalesce(s.share, 0))::bigint - q.running - q.scheduled - q.retrying - q.waiting - q.paused)
      else q.ready
    end,
    q.running, q.scheduled, q.retrying, q.waiting, q.paused, q.oldest_ready_age, q.due_next,
    q.is_capped or (
      select greatest(sum(a.scheduled + a.retrying), sum(a.waiting), sum(a.paused)) >= 5 * v_cap from queues a)
  from queues q
    left join shares s on s.queue = q.queue;
end
$$;
comment on function bugle.live_counts is
  'Live jobs of each queue by state, counted up to a cap and estimated beyond it.';

-- Of the jobs without keys, the oldest of the first twenty priorities and of the last one, where jobs starve. They are
-- in the order of run_at, so that none is older than a first one that was not due before it was enqueued; behind one
-- that was, it is the oldest of a hundred. Of jobs with keys, too, among the first hundred.
create or replace function bugle.oldest_ready(p_queue text, p_route bigint) returns timestamptz
language plpgsql stable
as $$
begin
  return (
    select min(greatest(f.run_at, f.created_at))
    from (
      select n.run_at, n.created_at
      from bugle.first_priorities(p_queue, p_route) s (priority)
        cross join lateral (
          select j.run_at >= j.created_at as is_oldest
          from bugle.plain_ready j
          where j.queue = p_queue
            and j.route = p_route
            and j.priority = s.priority
          order by j.run_at, j.id
          limit 1) o
        cross join lateral (
          select j.run_at, j.created_at
          from bugle.plain_ready j
          where j.queue = p_queue
            and j.route = p_route
            and j.priority = s.priority
          order by j.run_at, j.id
          limit case when o.is_oldest then 1 else 100 end) n
      union all
      (
        select j.run_at, j.created_at
        from bugle.keyed_ready j
        where j.queue = p_queue
          and j.route = p_route
        order by j.priority, j.run_at, j.id
        limit 100)
      union all
      (
        select j.run_at, j.created_at
        from bugle.fair_ready j
        where j.queue_hash = hashtextextended(p_queue, 0)
          and j.route = p_route
          and j.queue = p_queue
        order by j.fair_hash, j.has_other_key, j.priority, j.run_at, j.id
        limit 100)) f);
end
$$;
comment on function bugle.oldest_ready is 'Since when the oldest ready job of a queue and route has been ready.';

create or replace function bugle.first_priorities(p_queue text, p_route bigint) returns setof integer
language sql stable
as $$
  with recursive step (priority, place) as (
    (
      select j.priority, 1
      from bugle.plain_ready j
      where j.queue = p_queue
        and j.route = p_route
      order by j.priority, j.run_at, j.id
      limit 1)
    union all
    select n.priority, s.place + 1
    from step s
      cross join lateral (
        select j.priority
        from bugle.plain_ready j
        where j.queue = p_queue
          and j.route = p_route
          and j.priority > s.priority
        order by j.priority, j.run_at, j.id
        limit 1) n
    where s.place < 20
  )
  select s.priority from step s
  union
  (
    select j.priority
    from bugle.plain_ready j
    where j.queue = p_queue
      and j.route = p_route
    order by j.priority desc, j.run_at desc, j.id desc
    limit 1)
$$;
comment on function bugle.first_priorities is
  'The first twenty priorities of the ready jobs of a queue and route that have no key, and the last.';

-- What workers report is exact and cheap to read, and includes attempts that are retried. For queues whose workers do
-- not report, for example workers in another language, history is counted, up to a cap. Jobs that failed for good are
-- few.
create or replace function bugle.ended_lately() returns table (queue text, completed bigint, failed bigint)
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off set jit = off
as $$
begin
  return query
  with reported as (
    -- the current minute, and as much of the one before as is missing to a whole
    select m.queue, round(sum(m.completed * s.share))::bigint as completed,
      round(sum(m.failed * s.share))::bigint as failed
    from bugle.minutes m
      cross join lateral (
        select case
          when m.minute = date_trunc('minute', now()) then 1
          else 1 - extract(epoch from now() - date_trunc('minute', now())) / 60 end) s (share)
    where m.minute >= date_trunc('minute', now()) - interval '1 minute'
    group by m.queue
  ), completed as (
    select r.queue, r.completed from reported r
    union all
    select k.queue, count(*)
    from (
      select j.queue
      from bugle.jobs_ended j
      where j.state = 'completed'
        and j.finished_at > now() - interval '1 minute'
        and j.day >= (now() at time zone 'utc')::date - 1
      limit 50000) k
    where not exists (select from reported r where r.queue = k.queue)
    group by k.queue
  ), failed as (
    -- not every dead letter is a failed attempt: a deadline may have passed
    select f.queue, max(f.failed) as failed
    from (
      select r.queue, r.failed from reported r
      union all
      select l.queue, count(*)
      from (
        select j.queue
        from bugle.jobs_failed j
        where j.finished_at > now() - interval '1 minute'
          and j.day >= (now() at time zone 'utc')::date - 1
        limit 50000) l
      group by l.queue) f
    group by f.queue
  )
  select coalesce(c.queue, f.queue), coalesce(c.completed, 0), coalesce(f.failed, 0)
  from completed c
    full join failed f on f.queue = c.queue;
end
$$;
comment on function bugle.ended_lately is
  'How many jobs of each queue completed, and how many attempts failed, in the last minute.';

create or replace function bugle.restricted_queues() returns table (queue text, paused_at timestamptz, limits text)
language sql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
  select q.name, q.paused_at, bugle.describe_limits(q)
  from bugle.queues q
  where q.is_limited
    or q.paused_at is not null
$$;
comment on function bugle.restricted_queues is 'Queues that are paused or have limits, and the limits in one line.';

create or replace view bugle.queue_stats as
with served as (
  select q.queue, count(*) as workers, sum(q.slots) as slots
  from bugle.registrations r
    cross join lateral unnest(r.queues, r.slots) q (queue, slots)
  where bugle.is_active(r)
  group by q.queue
), unserved as (
  select u.queue, array_agg(distinct u.command order by u.command) as commands
  from bugle.unserved u
  group by u.queue
)
select
  queue, coalesce(l.ready, 0) as ready, coalesce(l.running, 0) as running, coalesce(l.scheduled, 0) as scheduled,
  coalesce(l.retrying, 0) as retrying, coalesce(l.waiting, 0) as waiting, coalesce(l.paused, 0) as paused,
  l.oldest_ready_age, l.due_next,
  coalesce(e.completed, 0) as completed_last_minute, coalesce(e.failed, 0) as failed_last_minute,
  coalesce(s.workers, 0) as workers, coalesce(s.slots, 0) as slots, u.commands as unserved_commands,
  coalesce(l.is_estimate, false) as is_estimate, h.paused_at as paused_since, h.limits
from bugle.live_counts() l
  full join bugle.ended_lately() e using (queue)
  full join served s using (queue)
  full join bugle.restricted_queues() h using (queue)
  left join unserved u using (queue);
comment on view bugle.queue_stats is
  'Each queue: live jobs by state, the oldest ready one, what is due next, what finished in the last minute, who '
  'serves it, what holds it back.';
comment on column bugle.queue_stats.queue is 'The queue.';
comment on column bugle.queue_stats.ready is 'Jobs that could start now: the depth of the queue.';
comment on column bugle.queue_stats.running is 'Jobs that run now.';
comment on column bugle.queue_stats.scheduled is 'Jobs for later.';
comment on column bugle.queue_stats.retrying is 'Jobs that failed and wait for their next attempt.';
comment on column bugle.queue_stats.waiting is 'Jobs that wait for other jobs, or for an answer.';
comment on column bugle.queue_stats.paused is 'Jobs held back by an operator.';
comment on column bugle.queue_stats.oldest_ready_age is 'How long the oldest ready job could have been running.';
comment on column bugle.queue_stats.due_next is 'When the next scheduled or retrying job is due.';
comment on column bugle.queue_stats.completed_last_minute is 'Jobs completed in the last minute.';
comment on column bugle.queue_stats.failed_last_minute is
  'Attempts that failed in the last minute, whether they are retried or not.';
comment on column bugle.queue_stats.workers is 'Live workers that serve it.';
comment on column bugle.queue_stats.slots is 'How many of its jobs they can run at once.';
comment on column bugle.queue_stats.unserved_commands is 'Commands of its ready jobs that none of them serves.';
comment on column bugle.queue_stats.is_estimate is
  'Whether the queue is so long that some of the counts are estimates.';
comment on column bugle.queue_stats.paused_since is 'Since when nothing is claimed from it. Null: it is not paused.';
comment on column bugle.queue_stats.limits is 'Its limits, in one line. Null: it has none.';

create or replace function bugle.history_ahead() returns table (kind text, days integer)
language sql stable
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
  select d.kind, max(d.day) - (now() at time zone 'utc')::date
  from bugle.history_days d
  where d.retired_at is null
  group by d.kind
$$;
comment on function bugle.history_ahead is
  'For how many days to come history has partitions, for each kind of history.';

-- For the metrics of the keeper: one worker exports them, so that they can be summed up.
create or replace function bugle.gauges() returns table (name text, queue text, label text, value double precision)
language sql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
  with stats as materialized (select q.* from bugle.queue_stats q)
  select g.name, s.queue, g.label, g.value::double precision
  from stats s
    cross join lateral (values
      ('queue_jobs', 'ready', s.ready), ('queue_jobs', 'running', s.running), ('queue_jobs', 'scheduled', s.scheduled),
      ('queue_jobs', 'retrying', s.retrying), ('queue_jobs', 'waiting', s.waiting), ('queue_jobs', 'paused', s.paused),
      ('queue_oldest_ready_timestamp', null, extract(epoch from now() - s.oldest_ready_age))) g (name, label, value)
  where g.value is not null
  union all
  -- all reasons from the beginning: a counter that appears with its first event has no increase
  select 'dead_letters', k.queue, k.reason, coalesce(sum(d.jobs), 0)::double precision
  from (
    select s.queue, r.reason
    from stats s
      cross join unnest(bugle.failure_reasons()) r (reason)
    union
    select c.queue, c.reason from bugle.dead_letter_counts c) k
    left join bugle.dead_letter_counts d using (queue, reason)
  group by k.queue, k.reason
  union all
  select 'queue_paused', q.name, null::text, (q.paused_at is not null)::integer::double precision
  from bugle.queues q
  union all
  select 'unserved_since_timestamp', u.queue, u.command, extract(epoch from u.since)::double precision
  from bugle.unserved u
  union all
  select 'workers', null::text, s.state, count(w.id)::double precision
  from unnest(array['alive', 'paused', 'lost']) s (state)
    left join bugle.workers w on w.state = s.state
  group by s.state
  union all
  select 'history_days_ahead', null::text, h.kind, h.days::double precision
  from bugle.history_ahead() h
  union all
  select 'dead_rows', null::text, null::text, s.n_dead_tup::double precision
  from pg_stat_user_tables s
  where s.relid = 'bugle.jobs_live'::regclass
  union all
  select 'oldest_snapshot_timestamp', null::text, null::text, extract(epoch from min(a.xact_start))::double precision
  from pg_stat_activity a
  where a.datname = current_database()
    and a.backend_xmin is not null
    and a.pid <> pg_backend_pid()
  having min(a.xact_start) is not null
  union all
  select 'notification_queue_ratio', null::text, null::text, pg_notification_queue_usage()
$$;
comment on function bugle.gauges is 'The keeper''s metrics about the whole database.';
