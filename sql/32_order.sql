-- order: jobs by priority, due time and id, and the first job of each order key. Used by claims of queues that have
-- limits or keys.
--
-- Ready jobs are read in order first. If too many of them cannot start, because they come after others of their order
-- key or their limit key is full, the keys themselves are scanned, from where the last claim stopped. So no claim reads
-- all jobs of a blocked key.

-- Jobs without a fair key. Those without any key can always start; of the others the first p_depth are read.
create or replace function bugle.next_in_line(p_search bugle.start_search, p_depth integer, p_limit integer)
returns tid[]
language plpgsql stable
as $$
begin
  return array(
    select n.address
    from unnest(p_search.routes) r (route)
      cross join lateral (
        (
          select j.address, j.priority, j.run_at, j.id
          from bugle.plain_ready j
          where j.queue = p_search.queue
            and j.route = r.route
            and bugle.may_start(p_search, j.command, j.steps, j.step, j.is_in_time)
          order by j.priority, j.run_at, j.id
          limit p_limit)
        union all
        select k.address, k.priority, k.run_at, k.id
        from (
          select j.address, j.priority, j.run_at, j.id, j.is_next_in_order
          from bugle.keyed_ready j
          where j.queue = p_search.queue
            and j.route = r.route
            and bugle.may_start(p_search, j.command, j.steps, j.step, j.is_in_time)
          order by j.priority, j.run_at, j.id
          limit p_depth) k
        where k.is_next_in_order) n
    order by n.priority, n.run_at, n.id);
end
$$;
comment on function bugle.next_in_line is 'Jobs without a fair key that may start, by priority, due time and id.';

-- Each step of the recursion is one index probe, for the next key and the first job of its line: first the keys behind
-- p_after, then those from the start. The scan ends when enough jobs are found. p_chosen: jobs that have been chosen
-- already. Returns where the scan stopped; null: it has seen all keys.
create or replace function bugle.scan_order_keys(
  p_search bugle.start_search, p_chosen tid[], p_after bigint, p_limit integer, p_reach integer,
  out addresses tid[], out stopped_at bigint)
language plpgsql stable
as $$
declare
  v_queue constant bigint := hashtextextended(p_search.queue, 0);
begin
  with scan as materialized (
    select k.order_hash, k.address, k.rank, part.place
    from (values (1, p_after, bugle.highest_hash()), (2, bugle.lowest_hash(), p_after)) part (place, after, upto)
      cross join lateral (
        with recursive keys (order_hash, address, rank) as (
          select part.after, null::tid, null::integer
          union all
          select n.order_hash, n.address, n.rank
          from keys k
            cross join lateral (
              select j.order_hash, j.address, j.rank
              from bugle.order_line j
              where j.queue_hash = v_queue
                and j.order_hash > k.order_hash
                and j.queue = p_search.queue
              order by j.order_hash, j.rank, j.id
              limit 1) n
          -- not an index condition, which would be compared with every entry of a page
          where n.order_hash <= part.upto
        )
        select k.* from keys k where k.rank is not null) k
    limit p_reach
  ), found as materialized (
    select s.place, s.order_hash, j.address, j.priority, j.run_at, j.id
    from scan s
      cross join lateral (
        select j.address, j.priority, j.run_at, j.id, j.limit_key, j.order_key
        from bugle.ready j
        where j.address = case s.rank
            when 2 then s.address
            -- something else comes first, and may block it
            when 1 then (
              select r.address
              from bugle.order_line r
              where r.queue_hash = v_queue
                and r.order_hash = s.order_hash
                and r.rank = 2
                and r.queue = p_search.queue
              order by r.id
              limit 1) end
          and (s.rank = 2 or j.is_next_in_order)
          and j.route = any (p_search.routes)
          and bugle.may_start(p_search, j.command, j.steps, j.step, j.is_in_time)
        limit 1) j
    where j.address <> all (p_chosen)
      and (j.limit_key is null
        or coalesce((select r.room from bugle.key_rooms(p_search, array[j.limit_key]) r), 1) > 0)
    limit p_limit
  )
  select array(select f.address from found f order by f.priority, f.run_at, f.id),
    case
      when (select count(*) from found) = p_limit then (
        select f.order_hash from found f order by f.place desc, f.order_hash desc limit 1)
      when (select count(*) from scan) = p_reach then (
        select s.order_hash from scan s order by s.place desc, s.order_hash desc limit 1)
    end
  into addresses, stopped_at;
end
$$;
comment on function bugle.scan_order_keys is
  'The next job of each order key of a queue, key by key, where it may start.';

-- The same for limit keys: as many jobs of each key as it has room for. Jobs that also have an order key are found by
-- that.
create or replace function bugle.scan_limit_keys(
  p_search bugle.start_search, p_chosen tid[], p_after bigint, p_limit integer, p_reach integer,
  out addresses tid[], out stopped_at bigint, out free_at timestamptz)
language plpgsql stable
as $$
declare
  v_queue constant bigint := hashtextextended(p_search.queue, 0);
  v_chosen constant text[] := array(
    select distinct j.limit_key
    from unnest(p_chosen) c (address)
      cross join lateral (select l.limit_key from bugle.jobs_live l where l.ctid = c.address limit 1) j
    where j.limit_key is not null);
begin
  with scan as materialized (
    select k.limit_hash, k.limit_key, part.place
    from (values (1, p_after, bugle.highest_hash()), (2, bugle.lowest_hash(), p_after)) part (place, after, upto)
      cross join lateral (
        with recursive keys (limit_hash, limit_key) as (
          select part.after, null::text
          union all
          select n.limit_hash, n.limit_key
          from keys k
            cross join lateral (
              select f.limit_hash, f.limit_key
              from unnest(p_search.routes) r (route)
                cross join lateral (
                  select j.limit_hash, j.limit_key
                  from bugle.limited_ready j
                  where j.queue_hash = v_queue
                    and j.route = r.route
                    and j.limit_hash > k.limit_hash
                    and j.queue = p_search.queue
                  order by j.limit_hash, j.priority, j.run_at, j.id
                  limit 1) f
              order by f.limit_hash
              limit 1) n
          where n.limit_hash <= part.upto
        )
        select k.* from keys k where k.limit_key is not null) k
    limit p_reach
  ), found as materialized (
    select s.place, s.limit_hash, j.address, j.priority, j.run_at, j.id
    from scan s
      cross join lateral bugle.key_rooms(p_search, array[s.limit_key]) k
      cross join lateral (
        select m.address, m.priority, m.run_at, m.id
        from unnest(p_search.routes) r (route)
          cross join lateral (
            select j.address, j.priority, j.run_at, j.id
            from bugle.limited_ready j
            where j.queue_hash = v_queue
              and j.route = r.route
              and j.limit_hash = s.limit_hash
              and j.queue = p_search.queue
              and j.limit_key = s.limit_key
              and j.order_key is null
              and bugle.may_start(p_search, j.command, j.steps, j.step, j.is_in_time)
            order by j.priority, j.run_at, j.id
            limit least(k.room, p_limit)) m
        order by m.priority, m.run_at, m.id
        limit least(k.room, p_limit)) j
    where k.room > 0
      and s.limit_key <> all (v_chosen)
    limit p_limit
  )
  select array(select f.address from found f order by f.priority, f.run_at, f.id),
    case
      when (select count(*) from found) = p_limit then (
        select f.limit_hash from found f order by f.place desc, f.limit_hash desc limit 1)
      when (select count(*) from scan) = p_reach then (
        select s.limit_hash from scan s order by s.place desc, s.limit_hash desc limit 1)
    end,
    case when (p_search.limits).max_starts_per_key is not null and (select count(*) from found) < p_limit then (
      select min(l.free_at)
      from bugle.starts_left(p_search.queue, array(select s.limit_key from scan s),
        (p_search.limits).max_starts_per_key, (p_search.limits).starts_per_key_period) l) end
  into addresses, stopped_at, free_at;
end
$$;
comment on function bugle.scan_limit_keys is
  'Jobs of each limit key of a queue that has room, key by key; and when a full one has room again.';
