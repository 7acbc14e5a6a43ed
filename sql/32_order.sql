-- order: keys in turn, and the next job of each order key and limit key. Used by claims of queues that have limits or
-- keys.
--
-- Ready jobs are read in order first (33_fair.sql). If too many of them cannot start, because they come after others of
-- their order key or their limit key is full, the keys themselves are scanned, from where the last claim stopped. So no
-- claim reads all jobs of a blocked key.

-- First the keys behind p_after, then those from the start. Between them is the lowest hash: the turn of jobs without a
-- fair key. Each step is one index probe, for the first job of the next key.
--
-- Plain SQL, which the planner inlines: with p_kind a constant, one of the three probes remains, and a limit in the
-- caller's query ends the scan.
create or replace function bugle.keys_of(p_kind text, p_queue text, p_routes bigint[], p_after bigint)
returns table (place integer, hash bigint, address tid, state text, limit_key text)
language sql stable
as $$
  with recursive keys (place, hash, address, state, limit_key, is_wrapped) as (
    select 0, p_after, null::tid, null::text, null::text, false
    union all
    select k.place + 1, coalesce(n.hash, bugle.lowest_hash()), n.address, n.state, n.limit_key,
      k.is_wrapped or n.hash is null
    from keys k
      left join lateral (
        (
          select j.order_hash as hash, j.address, j.state, j.limit_key
          from bugle.order_line j
          where p_kind = 'order'
            and j.queue_hash = hashtextextended(p_queue, 0)
            and j.order_hash > k.hash
            and j.queue = p_queue
          order by j.order_hash, j.rank, j.id
          limit 1)
        union all
        (
          select f.hash, f.address, f.state, f.limit_key
          from unnest(p_routes) r (route)
            cross join lateral (
              select j.limit_hash as hash, j.address, j.state, j.limit_key
              from bugle.limited_ready j
              where p_kind = 'limit'
                and j.queue_hash = hashtextextended(p_queue, 0)
                and j.route = r.route
                and j.limit_hash > k.hash
                and j.queue = p_queue
              order by j.limit_hash, j.priority, j.run_at, j.id
              limit 1) f
          order by f.hash
          limit 1)
        union all
        (
          select f.hash, f.address, f.state, f.limit_key
          from unnest(p_routes) r (route)
            cross join lateral (
              select j.fair_hash as hash, j.address, j.state, j.limit_key
              from bugle.fair_ready j
              where p_kind = 'fair'
                and j.queue_hash = hashtextextended(p_queue, 0)
                and j.route = r.route
                and j.fair_hash > k.hash
                and j.queue = p_queue
              order by j.fair_hash, j.has_other_key, j.priority, j.run_at, j.id
              limit 1) f
          order by f.hash
          limit 1)) n on true
    -- not an index condition, which would be compared with every entry of a page
    where not k.is_wrapped
      or n.hash <= p_after
  )
  select k.place, k.hash, k.address, k.state, k.limit_key from keys k where k.place > 0
$$;
comment on function bugle.keys_of is
  'The keys of a queue that have jobs of this kind (order, limit or fair), in turn, with the first job of each.';

-- The scan ends when enough jobs are found. p_chosen: jobs that have been chosen already.
create or replace function bugle.scan_order_keys(
  p_search bugle.start_search, p_chosen tid[], p_after bigint, p_limit integer, p_reach integer,
  out addresses tid[], out stopped_at bigint)
language plpgsql stable
as $$
begin
  with keys as materialized (
    select k.* from bugle.keys_of('order', p_search.queue, null, p_after) k limit p_reach
  ), found as materialized (
    select k.place, k.hash, j.address, j.priority, j.run_at, j.id
    from keys k
      cross join lateral (
        select j.address, j.priority, j.run_at, j.id, j.limit_key
        from bugle.ready j
        where j.address = case k.state
            when 'ready' then k.address
            when 'running' then null
            -- something else comes first, and may block it
            else (
              select r.address
              from bugle.order_line r
              where r.queue_hash = hashtextextended(p_search.queue, 0)
                and r.order_hash = k.hash
                and r.rank = 2
                and r.queue = p_search.queue
              order by r.id
              limit 1) end
          and (k.state = 'ready' or j.is_next_in_order)
          and j.route = any (p_search.routes)
          and bugle.may_start(p_search, j.command, j.steps, j.step, j.is_in_time)
        limit 1) j
    where j.address <> all (p_chosen)
      and (j.limit_key is null
        or coalesce((select r.room from bugle.key_room(p_search, j.limit_key) r), 1) > 0)
    limit p_limit
  )
  select array(select f.address from found f order by f.priority, f.run_at, f.id),
    case when (select count(*) from found) = p_limit then (select f.hash from found f order by f.place desc limit 1)
      else (select k.hash from keys k order by k.place desc limit 1) end
  into addresses, stopped_at;
end
$$;
comment on function bugle.scan_order_keys is
  'The next job of each order key of a queue, key by key, where it may start; and where the scan ended.';

-- The same for limit keys: as many jobs of each key as it has room for. Jobs that also have an order key are found by
-- that.
create or replace function bugle.scan_limit_keys(
  p_search bugle.start_search, p_chosen tid[], p_after bigint, p_limit integer, p_reach integer,
  out addresses tid[], out stopped_at bigint, out free_at timestamptz)
language plpgsql stable
as $$
begin
  with keys as materialized (
    select k.*, least(r.room, p_limit) as room, r.free_at
    from bugle.keys_of('limit', p_search.queue, p_search.routes, p_after) k
      cross join lateral bugle.key_room(p_search, k.limit_key) r
    limit p_reach
  ), found as materialized (
    select k.place, k.hash, j.address, j.priority, j.run_at, j.id
    from keys k
      cross join lateral (
        select m.address, m.priority, m.run_at, m.id
        from unnest(p_search.routes) r (route)
          cross join lateral (
            select j.address, j.priority, j.run_at, j.id
            from bugle.limited_ready j
            where j.queue_hash = hashtextextended(p_search.queue, 0)
              and j.route = r.route
              and j.limit_hash = k.hash
              and j.queue = p_search.queue
              and j.limit_key = k.limit_key
              and j.order_key is null
              and bugle.may_start(p_search, j.command, j.steps, j.step, j.is_in_time)
            order by j.priority, j.run_at, j.id
            limit k.room) m
        order by m.priority, m.run_at, m.id
        limit k.room) j
    where k.room > 0
      and j.address <> all (p_chosen)
    limit p_limit
  )
  select array(select f.address from found f order by f.priority, f.run_at, f.id),
    case when (select count(*) from found) = p_limit then (select f.hash from found f order by f.place desc limit 1)
      else (select k.hash from keys k order by k.place desc limit 1) end,
    case when (select count(*) from found) < p_limit then (select min(k.free_at) from keys k) end
  into addresses, stopped_at, free_at;
end
$$;
comment on function bugle.scan_limit_keys is
  'Jobs of each limit key of a queue that has room, key by key; where the scan ended; and when a full key has room.';
