-- held back: what keeps the ready jobs of one queue from starting, and who will be woken for it. Called by viewers, who
-- look at one queue at a time. All of it is bounded; nothing here is used by claims.

create or replace function bugle.limits_left(p_queue text, p_most integer default 50)
returns table (limited_by text, key text, most integer, used integer, room integer, free_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off set jit = off
as $$
declare
  v_limits bugle.queues;
  v_keys text[];
begin
  select q.* into v_limits from bugle.queues q where q.name = p_queue;
  return query
  select 'max_running', null::text, v_limits.max_running, r.jobs, greatest(v_limits.max_running - r.jobs, 0),
    null::timestamptz
  from (select count(*)::integer as jobs from bugle.running_of(p_queue, null, null)) r
  where v_limits.max_running is not null;
  return query
  select 'max_starts', null::text, v_limits.max_starts, v_limits.max_starts - s.room, greatest(s.room, 0), s.free_at
  from bugle.starts_left(p_queue, '', v_limits.max_starts, v_limits.starts_period) s
  where v_limits.max_starts is not null;
  if num_nonnulls(v_limits.max_running_per_key, v_limits.max_starts_per_key) > 0 then
    -- those of running jobs, then those of the first jobs that wait
    v_keys := array(
      select k.limit_key
      from (
        select j.limit_key, 0 as place
        from bugle.jobs_live j
        where bugle.is_running(j)
          and j.queue = p_queue
          and j.limit_key is not null
        union all
        (
          select j.limit_key, 1
          from bugle.limited_ready j
            join (select distinct h.route from bugle.ready_heads() h where h.queue = p_queue) h on h.route = j.route
          where j.queue_hash = hashtextextended(p_queue, 0)
            and j.queue = p_queue
          limit 20 * greatest(p_most, 0))) k
      group by k.limit_key
      order by min(k.place), count(*) desc, k.limit_key
      limit greatest(p_most, 0));
    return query
    select 'max_running_per_key', k.key, v_limits.max_running_per_key, r.jobs,
      greatest(v_limits.max_running_per_key - r.jobs, 0), null::timestamptz
    from unnest(v_keys) with ordinality k (key, place)
      cross join lateral (select count(*)::integer as jobs from bugle.running_of(p_queue, k.key, null)) r
    where v_limits.max_running_per_key is not null
    order by k.place;
    return query
    select 'max_starts_per_key', k.key, v_limits.max_starts_per_key, v_limits.max_starts_per_key - s.room,
      greatest(s.room, 0), s.free_at
    from unnest(v_keys) with ordinality k (key, place)
      cross join lateral bugle.starts_left(
        p_queue, k.key, v_limits.max_starts_per_key, v_limits.starts_per_key_period) s
    where v_limits.max_starts_per_key is not null
    order by k.place;
  end if;
  return query
  select 'command', c.name, c.max_running, r.jobs, greatest(c.max_running - r.jobs, 0), null::timestamptz
  from bugle.commands c
    cross join lateral (select count(*)::integer as jobs from bugle.running_of(null, null, c.name)) r
  where c.max_running is not null
    and (exists (select from bugle.ready_heads() h where h.queue = p_queue and h.command = c.name)
      or exists (select from bugle.running_of(p_queue, null, c.name)))
  order by c.name;
end
$$;
comment on function bugle.limits_left is
  'The limits that hold for a queue now: how much of each is used, how much is left, and when a full one has room '
  'again. Of limit keys, those that run and the first that wait.';

create or replace function bugle.next_turns(p_queue text, p_most integer default 20)
returns table (turn bigint, fair_key text, job bigint, ready bigint)
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off set jit = off
as $$
declare
  v_routes constant bigint[] := array(select distinct h.route from bugle.ready_heads() h where h.queue = p_queue);
  v_after constant bigint := coalesce(
    (select c.fair_hash from bugle.claim_positions c where c.queue = p_queue), bugle.lowest_hash());
begin
  return query
  select row_number() over (order by t.place), j.fair_key, j.id, (
    select count(*)
    from (
      select
      from unnest(v_routes) r (route)
        cross join lateral (
          select
          from bugle.fair_ready f
          where f.queue_hash = hashtextextended(p_queue, 0)
            and f.route = r.route
            and f.fair_hash = t.fair_hash
            and f.queue = p_queue
          limit 1000) f
      limit 1000) counted)
  from (
    select k.place, k.hash as fair_hash
    from bugle.keys_of('fair', p_queue, v_routes, v_after) k
    limit greatest(p_most, 0)) t
    cross join lateral (
      select f.fair_key, f.id
      from unnest(v_routes) r (route)
        cross join lateral (
          select f.fair_key, f.id, f.priority, f.run_at
          from bugle.fair_ready f
          where f.queue_hash = hashtextextended(p_queue, 0)
            and f.route = r.route
            and f.fair_hash = t.fair_hash
            and f.queue = p_queue
          order by f.fair_hash, f.has_other_key, f.priority, f.run_at, f.id
          limit 1) f
      order by f.priority, f.run_at, f.id
      limit 1) j;
end
$$;
comment on function bugle.next_turns is
  'The fair keys of a queue in the order of their turns: the first job of each, and how many are ready, up to 1,000.';

create or replace function bugle.blocked_keys(p_queue text, p_most integer default 20)
returns table (order_key text, job bigint, state text, run_at timestamptz, waiting bigint)
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off set jit = off
as $$
declare
  v_queue constant bigint := hashtextextended(p_queue, 0);
begin
  return query
  with held as (
    select h.order_key, h.id, h.state, h.run_at, (
      select count(*)
      from (
        select
        from bugle.order_line l
        where l.queue_hash = v_queue
          and l.order_hash = k.hash
          and l.rank = 2
          and l.queue = p_queue
        limit 1000) counted) as waiting
    from (select k.* from bugle.keys_of('order', p_queue, null, bugle.lowest_hash()) k limit 1000) k
      cross join lateral (
        select j.order_key, j.id, j.state, j.run_at from bugle.jobs_live j where j.ctid = k.address limit 1) h
    where h.state <> 'ready'
  )
  select h.order_key, h.id, h.state, h.run_at, h.waiting
  from held h
  where h.waiting > 0
  order by h.waiting desc, h.id
  limit greatest(p_most, 0);
end
$$;
comment on function bugle.blocked_keys is
  'Order keys of a queue whose ready jobs wait for another job of the key: which, its state, and how many wait, up to '
  '1,000. At most 1,000 keys are looked at.';

create or replace function bugle.doorbell()
returns table (queue text, worker bigint, worker_name text, mode text)
language sql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
  with locks as materialized (select l.pid, l.key, l.is_exclusive from bugle.advisory_locks() l)
  select q.queue, r.id, r.name,
    case
      when r.paused_at is not null then 'paused'
      when exists (
        select from locks l where l.pid = r.backend_pid and l.key = bugle.bell_key(q.queue) and l.is_exclusive)
        then 'sentinel'
      when exists (
        select from locks l where l.pid = r.backend_pid and l.key = bugle.follower_key(q.queue) and not l.is_exclusive)
        then 'follower'
      when exists (
        select from bugle.watchers w where w.queue = q.queue and w.worker = r.id and w.until > clock_timestamp())
        then 'watcher'
      else 'awake'
    end
  from bugle.registrations r
    cross join lateral unnest(r.queues) q (queue)
  where bugle.is_active(r)
  order by q.queue, r.id
$$;
comment on function bugle.doorbell is
  'How each worker waits for jobs of each of its queues: sentinel (the doorbell wakes it), follower (another worker '
  'calls it), watcher (polls while the bell is taken), awake or paused.';
