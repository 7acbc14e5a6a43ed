-- hops: from key to key by index, where a queue has more jobs of each key than may start. Used by claims of queues with limits or keys.
--
-- Each hop is a step of a recursion: one probe of an index, which gives the next key and, as it is ordered that way, what comes
-- first of it. A second look for that, key by key, took as long as the hop itself. Commands that share keys are hopped through one
-- after the other: to choose between them at every step took a sort for each.
--
-- The indexes have hashes of the keys (V20), so the keys come in the order of those. Two keys of one hash would share a turn.
create or replace function bugle.hop_from(p_key text) returns bigint
language sql immutable parallel safe
return case p_key when '' then -9223372036854775808 else hashtextextended(p_key, 0) end;
comment on function bugle.hop_from is 'Where hops through keys begin: behind one, or at the first.';

-- The next fair keys in their order, each with the job that is next of it, if that is plain to see: it has no other key, nor has any other
-- of the fair key, and it may start. p_is_mixed: there may be jobs with other keys.
create or replace function bugle.fair_firsts(
  p_queue text, p_commands text[], p_served text[], p_is_mixed boolean, p_after text, p_limit integer, out keys text[], out heads tid[])
language plpgsql stable
as $$
declare
  v_queue constant bigint := hashtextextended(p_queue, 0);
  v_from constant bigint := bugle.hop_from(p_after);
begin
  select coalesce(array_agg(f.fair_key order by f.key), '{}'), coalesce(array_agg(
    case when f.can_start and (not p_is_mixed or (
      select k.has_one
      from unnest(p_commands) c (command)
        cross join lateral (
          select true as has_one
          from bugle.jobs_live j
          where j.state = 'ready'
            and j.fair_key is not null
            and hashtextextended(j.queue, 0) = v_queue
            and hashtextextended(j.command, 0) = hashtextextended(c.command, 0)
            and hashtextextended(j.fair_key, 0) = f.key
            and j.queue = p_queue
            and j.command = c.command
            and (j.order_key is not null or j.limit_key is not null) = true
          limit 1) k
      limit 1) is null) then f.address end
    order by f.key), '{}')
  into keys, heads
  from (
    select distinct on (n.key) n.key, n.fair_key, n.address, n.can_start
    from unnest(p_commands) c (command)
      cross join lateral (
        with recursive hop (key, number, fair_key, address, id, priority, has_key, can_start) as (
          select v_from, 0, null::text, null::tid, null::bigint, null::integer, null::boolean, null::boolean
          union all
          select n.key, h.number + 1, n.fair_key, n.address, n.id, n.priority, n.has_key,
            not n.has_key and bugle.serves(p_served, c.command, n.steps, n.step) and (n.deadline is null or n.deadline > now())
          from hop h
            cross join lateral (
              select hashtextextended(j.fair_key, 0) as key, j.fair_key, j.ctid as address, j.id, j.priority, (j.order_key is not null or j.limit_key is not null) as has_key,
                j.steps, j.step, j.deadline
              from bugle.jobs_live j
              where j.state = 'ready'
                and j.fair_key is not null
                and hashtextextended(j.queue, 0) = v_queue
                and hashtextextended(j.command, 0) = hashtextextended(c.command, 0)
                and hashtextextended(j.fair_key, 0) > h.key
                and j.queue = p_queue
                and j.command = c.command
              order by hashtextextended(j.fair_key, 0), (j.order_key is not null or j.limit_key is not null), j.priority, j.id
              limit 1) n
          where h.number < p_limit
        )
        select h.* from hop h where h.number > 0) n
    order by n.key, n.has_key, n.priority, n.id
    limit p_limit) f;
end
$$;
comment on function bugle.fair_firsts is 'The fair keys that have ready jobs, from behind one on, and the next job of each where it is plain to see.';

-- Fair keys in the order of their turns: those behind the last, then from the beginning. Those without a key begin the round.
create or replace function bugle.firsts_by_turn(
  p_queue text, p_commands text[], p_served text[], p_is_mixed boolean, p_after text, p_limit integer, out keys text[], out heads tid[])
language plpgsql stable
as $$
declare
  v_more record;
begin
  select f.keys, f.heads into keys, heads from bugle.fair_firsts(p_queue, p_commands, p_served, p_is_mixed, p_after, p_limit) f;
  if cardinality(keys) < p_limit then
    select coalesce(array_agg(m.key order by m.place), '{}') as keys, coalesce(array_agg(m.head order by m.place), '{}') as heads into v_more
    from bugle.fair_firsts(p_queue, p_commands, p_served, p_is_mixed, '', p_limit - cardinality(keys)) f
      cross join unnest(f.keys, f.heads) with ordinality m (key, head, place)
    where bugle.hop_from(m.key) <= bugle.hop_from(p_after);
    keys := keys || ''::text || v_more.keys;
    heads := heads || null::tid || v_more.heads;
  end if;
end
$$;
comment on function bugle.firsts_by_turn is 'The fair keys of a queue in the order of their turns, and the next job of each where it is plain to see.';

-- The first of each order key, from behind one on and round to it again, until there are enough. Each step of the recursion is one
-- probe of the index, which gives the next key and what comes first of it.
create or replace function bugle.hop_orders(
  p_queue text, p_limits bugle.queues, p_busy jsonb, p_commands text[], p_served text[], p_blocks boolean, p_after text,
  p_addresses tid[], p_limit integer, p_reach integer, out addresses tid[], out order_key text)
language plpgsql stable
as $$
declare
  v_has_keys constant boolean := num_nonnulls(p_limits.max_running_per_key, p_limits.max_starts_per_key) > 0;
  v_queue constant bigint := hashtextextended(p_queue, 0);
  v_begin constant bigint := bugle.hop_from(p_after);
  v_from bigint := v_begin;
  v_more integer;
  v_found tid[];
  v_last text;
  v_hops integer;
  v_seen integer := 0;
  v_is_round boolean := p_after = '';
begin
  addresses := p_addresses;
  order_key := p_after;
  while cardinality(addresses) < p_limit and v_seen < p_reach loop
    v_more := least(greatest((p_limit - cardinality(addresses))::bigint * 9 / 8 + 8, v_seen), p_reach - v_seen)::integer;
    with recursive hop (key, number, order_key, address, id, state, command, steps, step, deadline, priority, limit_key) as (
      select v_from, 0, order_key, null::tid, null::bigint, null::text, null::text, null::text[], null::integer, null::timestamptz, null::integer, null::text
      union all
      select n.key, h.number + 1, n.order_key, n.address, n.id, n.state, n.command, n.steps, n.step, n.deadline, n.priority, n.limit_key
      from hop h
        cross join lateral (
          select hashtextextended(j.order_key, 0) as key, j.order_key, j.ctid as address, j.id, j.state, j.command, j.steps, j.step, j.deadline, j.priority, j.limit_key
          from bugle.jobs_live j
          where hashtextextended(j.queue, 0) = v_queue
            and hashtextextended(j.order_key, 0) > h.key
            and j.queue = p_queue
            and j.order_key is not null
            and (j.state not in ('scheduled', 'waiting') or j.first_started_at is not null)
          order by hashtextextended(j.order_key, 0), case j.state when 'running' then 0 when 'ready' then 2 else 1 end, j.id
          limit 1) n
      where h.number < v_more
    )
    select array(
        select f.address
        from hop h
          cross join lateral (
            select h.address, h.id, h.command, h.steps, h.step, h.deadline, h.priority, h.limit_key
            where h.state = 'ready'
            union all
            -- something else comes first, and may be in the way
            select r.*
            from (
              select r.ctid, r.id, r.command, r.steps, r.step, r.deadline, r.priority, r.limit_key
              from bugle.jobs_live r
              where h.state not in ('ready', 'running')
                and hashtextextended(r.queue, 0) = v_queue
                and hashtextextended(r.order_key, 0) = h.key
                and r.queue = p_queue
                and r.order_key is not null
                and (r.state not in ('scheduled', 'waiting') or r.first_started_at is not null)
                and case r.state when 'running' then 0 when 'ready' then 2 else 1 end = 2
              order by r.id
              limit 1) r
            where not p_blocks
              or h.id > r.id) f
        where f.command = any (p_commands)
          and bugle.serves(p_served, f.command, f.steps, f.step)
          and (f.deadline is null or f.deadline > now())
          and f.address <> all (addresses)
          and (f.limit_key is null
            or not v_has_keys
            or (select r.room from bugle.key_rooms(p_limits, p_busy, array[f.limit_key]) r) > 0)
        order by f.priority, f.id),
      (select h.order_key from hop h order by h.number desc limit 1),
      (select max(h.number) from hop h)
    into v_found, v_last, v_hops;
    addresses := addresses || v_found;
    v_seen := v_seen + v_hops;
    order_key := v_last;
    v_from := bugle.hop_from(order_key);
    exit when v_is_round and p_after <> '' and v_from >= v_begin;
    if v_hops < v_more then
      exit when v_is_round;
      v_is_round := true;
      order_key := '';
      v_from := bugle.hop_from('');
    end if;
  end loop;
end
$$;
comment on function bugle.hop_orders is 'More candidates: the first job of each order key, from behind a key on.';

-- As many of each limit key as it has room for beside those that are candidates already. The step to a key brings its first job with it; where there is room for more, or that
-- one cannot start, they are looked for.
create or replace function bugle.hop_limits(
  p_limits bugle.queues, p_busy jsonb, p_commands text[], p_served text[], p_after text, p_addresses tid[], p_limit integer,
  p_reach integer, out addresses tid[], out limit_key text, out free_at timestamptz)
language plpgsql stable
set enable_hashjoin = on
as $$
declare
  v_taken constant jsonb := (
    select jsonb_object_agg(t.limit_key, t.jobs)
    from (
      select j.limit_key, count(*) as jobs
      from unnest(p_addresses) a (address)
        cross join lateral (
          select l.limit_key from bugle.jobs_live l where l.ctid = a.address limit 1) j
      where j.limit_key is not null
      group by j.limit_key) t);
  v_queue constant bigint := hashtextextended(p_limits.name, 0);
  v_begin constant bigint := bugle.hop_from(p_after);
  v_from bigint := v_begin;
  v_more integer;
  v_found tid[];
  v_last text;
  v_hops integer;
  v_free_at timestamptz;
  v_seen integer := 0;
  v_is_round boolean := p_after = '';
begin
  addresses := p_addresses;
  limit_key := p_after;
  while cardinality(addresses) < p_limit and v_seen < p_reach loop
    v_more := least(greatest((p_limit - cardinality(addresses))::bigint * 9 / 8 + 8, v_seen), p_reach - v_seen)::integer;
    with heads as materialized (
      select distinct on (n.key) n.key, n.limit_key, n.address, n.id, n.priority, n.can_start
      from unnest(p_commands) c (command)
        cross join lateral (
          with recursive hop (key, number, limit_key, address, id, priority, can_start) as (
            select v_from, 0, null::text, null::tid, null::bigint, null::integer, null::boolean
            union all
            select n.key, h.number + 1, n.limit_key, n.address, n.id, n.priority,
              n.order_key is null and bugle.serves(p_served, c.command, n.steps, n.step) and (n.deadline is null or n.deadline > now())
            from hop h
              cross join lateral (
                select hashtextextended(j.limit_key, 0) as key, j.limit_key, j.ctid as address, j.id, j.priority, j.steps, j.step, j.deadline, j.order_key
                from bugle.jobs_live j
                where j.state = 'ready'
                  and j.limit_key is not null
                  and hashtextextended(j.queue, 0) = v_queue
                  and hashtextextended(j.command, 0) = hashtextextended(c.command, 0)
                  and hashtextextended(j.limit_key, 0) > h.key
                  and j.queue = p_limits.name
                  and j.command = c.command
                order by hashtextextended(j.limit_key, 0), j.priority, j.id
                limit 1) n
            where h.number < v_more
          )
          select h.* from hop h where h.number > 0) n
      order by n.key, n.priority, n.id
      limit v_more
    ), rooms as materialized (
      select h.key, h.limit_key, h.address, h.id, h.priority, h.can_start and n.room = 1 as is_enough, n.room, r.free_at
      from heads h
        join bugle.key_rooms(p_limits, p_busy, array(select k.limit_key from heads k)) r on r.key = h.limit_key
        cross join lateral (
          select r.room - coalesce((v_taken ->> h.limit_key)::integer, 0) as room) n
      -- not twice: the last hops of a round may go further than it began
      where not v_is_round
        or p_after = ''
        or h.key <= v_begin
    )
    select array(
        select w.address
        from rooms k
          cross join lateral (
            select k.address, k.id, k.priority
            where k.is_enough
            union all
            (
              select m.address, m.id, m.priority
              from unnest(p_commands) c (command)
                cross join lateral (
                  select j.ctid as address, j.id, j.priority
                  from bugle.jobs_live j
                  where j.state = 'ready'
                    and j.limit_key is not null
                    and hashtextextended(j.queue, 0) = v_queue
                    and hashtextextended(j.command, 0) = hashtextextended(c.command, 0)
                    and hashtextextended(j.limit_key, 0) = k.key
                    and j.queue = p_limits.name
                    and j.command = c.command
                    and j.limit_key = k.limit_key
                    and bugle.serves(p_served, j.command, j.steps, j.step)
                    and (j.deadline is null or j.deadline > now())
                    and j.order_key is null
                  order by j.priority, j.id
                  limit least(k.room, p_limit)) m
              where not k.is_enough
              order by m.priority, m.id
              limit least(k.room, p_limit))) w
        where k.room > 0
          and w.address <> all (addresses)
        order by w.priority, w.id),
      coalesce((select h.limit_key from heads h order by h.key desc limit 1), limit_key),
      (select count(*) from heads h),
      (select min(k.free_at) from rooms k)
    into v_found, v_last, v_hops, v_free_at;
    addresses := addresses || v_found;
    free_at := least(free_at, v_free_at);
    v_seen := v_seen + v_hops;
    limit_key := v_last;
    v_from := bugle.hop_from(limit_key);
    exit when v_is_round and p_after <> '' and v_from >= v_begin;
    if v_hops < v_more then
      exit when v_is_round;
      v_is_round := true;
      limit_key := '';
      v_from := bugle.hop_from('');
    end if;
  end loop;
end
$$;
comment on function bugle.hop_limits is 'More candidates: jobs of each limit key that has room, from behind a key on.';
