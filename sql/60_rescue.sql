-- rescue: running -> ready, failed. The keeper takes back the jobs of workers that are gone.
--
-- Safe with two keepers at once, and safe to repeat. Each statement has its own snapshot: a worker's lock and its jobs
-- must not be judged by one old snapshot.

-- A worker's proof of life is an advisory lock held by the session it registered; held by any other session it proves
-- nothing. After a restart or crash of the server all locks are gone at once, and every worker gets the grace time to
-- come back.
--
-- The tempting form joins settings and keeping. Tables of one row are never analyzed, the planner takes them for
-- hundreds of rows, and the product for so expensive that it compiles the query: 40 to 370 ms for each call, wherever
-- jit is on.
create or replace function bugle.note_lost(p_self bigint) returns integer
language plpgsql
as $$
declare
  v_worker record;
  v_lost integer := 0;
begin
  for v_worker in
    with held as materialized (select l.pid, l.key from bugle.advisory_locks() l)
    select r.id, r.life_key, r.backend_pid, r.queues,
      not exists (select from held h where h.pid = r.backend_pid and h.key = r.life_key) as is_gone,
      greatest(r.seen_at, (select k.watching_since from bugle.keeping k))
        < clock_timestamp() - (select s.lease from bugle.settings s) as is_stale,
      (select s.lost_grace from bugle.settings s) as lost_grace
    from bugle.registrations r
    where r.stopped_at is null
      and r.lost_at is null
      and r.id <> p_self
      and r.backend_pid <> pg_backend_pid()
  loop
    continue when not v_worker.is_gone and not v_worker.is_stale;
    -- A locked row is being updated by its own worker, which may be waiting for this session: left for the next call.
    update bugle.registrations r
    set lost_at = clock_timestamp() - case when v_worker.is_gone then interval '0' else v_worker.lost_grace end
    where r.id = (
      select l.id
      from bugle.registrations l
      where l.id = v_worker.id
        and l.life_key = v_worker.life_key
        and l.lost_at is null
      for update skip locked);
    continue when not found;
    if not v_worker.is_gone then
      -- Frozen, or behind a half-open connection: it had its grace time. Its later calls will be rejected.
      perform bugle.try_to_terminate(v_worker.backend_pid);
    end if;
    v_lost := v_lost + 1;
    -- the lost one may have been the sentinel: another worker must scan the queue
    perform bugle.pass_on(q.queue) from unnest(v_worker.queues) q (queue);
  end loop;
  return v_lost;
end
$$;
comment on function bugle.note_lost is
  'Note the workers whose proof of life, or whose heartbeat, is gone. Returns how many.';

-- Best effort: it frees the bell of a frozen sentinel, if the owner of this schema has the right.
create or replace function bugle.try_to_terminate(p_backend_pid integer) returns boolean
language plpgsql
as $$
begin
  return pg_terminate_backend(p_backend_pid);
exception when insufficient_privilege then
  return false;
end
$$;
comment on function bugle.try_to_terminate is 'End a session, if the owner of this schema may.';

create or replace function bugle.rescue(p_limit integer default 1000) returns integer
language plpgsql
as $$
declare
  v_crash_limit constant integer := (select s.crash_limit from bugle.settings s);
  v_job bugle.jobs_live;
  v_reason text;
  v_error text;
  v_endings bugle.ending[] := '{}';
  v_queues text[] := '{}';
  v_rescued integer := 0;
begin
  for v_job in
    select j.*
    from bugle.jobs_live j
    where bugle.is_running(j)
      and j.worker = any (array(select w.worker from bugle.lost_workers() w))
    order by j.id
    limit p_limit
    for update skip locked
  loop
    -- seed: rescue_does_nothing
    v_rescued := v_rescued + 1;
    v_error := format('worker %s was lost while it ran this job', v_job.worker);
    v_reason := case
      when v_job.crashes + 1 >= v_crash_limit then 'crash_loop'
      when v_job.attempt >= bugle.max_attempts_of(v_job) then 'attempts_exhausted'
    end;
    perform bugle.record_attempt(v_job, 'rescued', v_error, 'worker_lost');
    update bugle.jobs_live j
    set state = 'ready',
      -- seed: rescue_counts_no_crash
      crashes = j.crashes + 1,
      -- null: a later call of the lost worker is fenced, not repeated
      worker = case when v_reason is not null then j.worker end,
      last_error = v_error,
      -- seed: rescue_forgets_steps
      last_error_code = 'worker_lost',
      updated_at = now()
    where j.id = v_job.id;
    if v_reason is null then
      v_queues := v_queues || v_job.queue;
    else
      v_endings := v_endings || bugle.ending(v_job.id, 'failed', v_reason, v_error, 'worker_lost');
    end if;
  end loop;
  if cardinality(v_endings) > 0 then
    perform bugle.end_jobs(v_endings);
  end if;
  -- seed: rescue_never_rings
  perform bugle.ring(q.queue) from (select distinct unnest(v_queues) as queue) q;
  return v_rescued;
end
$$;
comment on function bugle.rescue is
  'Put the jobs of lost workers back: ready, or failed if they crashed too often. Returns how many.';

-- Workers that hold jobs and are not alive: stopped, unknown, or lost for longer than the grace time. A loose index
-- scan over the running jobs of all workers between those that are alive: the entries of a live worker are not read,
-- because while an old snapshot is open, that of every job it has ever run is still there.
create or replace function bugle.lost_workers() returns table (worker bigint)
language sql stable set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
  with recursive alive (id) as materialized (
    select r.id
    from bugle.registrations r
      cross join bugle.settings s
    where r.stopped_at is null
      -- seed: rescue_has_no_grace
      and (r.lost_at is null or r.lost_at > clock_timestamp() - s.lost_grace)
  ), lost (worker, before, is_lost) as (
    select coalesce(lag(b.id) over (order by b.id), -9223372036854775808), b.id, false
    from (select a.id from alive a union all select 9223372036854775807) b
    union all
    select j.worker, l.before, true
    from lost l
      cross join lateral (
        select r.worker
        from bugle.jobs_live r
        where bugle.is_running(r)
          and r.worker > l.worker
          and r.worker < l.before
        order by r.worker
        limit 1) j
  )
  select l.worker from lost l where l.is_lost
$$;
comment on function bugle.lost_workers is 'Workers that hold running jobs and will not come back.';

create or replace function bugle.next_rescue_seconds() returns double precision
language sql stable
as $$
  select extract(epoch from min(r.lost_at + s.lost_grace) - clock_timestamp())::double precision + 0.001
  from bugle.registrations r
    cross join bugle.settings s
  where r.stopped_at is null
    and r.lost_at > clock_timestamp() - s.lost_grace
$$;
comment on function bugle.next_rescue_seconds is
  'In how many seconds the grace time of a lost worker ends. Null if no worker is lost.';
