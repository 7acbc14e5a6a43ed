-- fair: which jobs of a queue with limits or keys start next, in which order, and how a claim takes them.
--
-- With fair keys, the keys take turns, one start each, beginning behind the key that started last; within a key by
-- priority, due time and id. Jobs without a fair key take turns as one more key, at the end of the round. In a queue
-- without fair keys, jobs start by priority, due time and id.

-- First the keys behind p_after, then jobs without a key (null), then the keys from the start.
create or replace function bugle.fair_turns(p_queue text, p_routes bigint[], p_after bigint, p_limit integer)
returns bigint[]
language plpgsql stable
as $$
declare
  c_first constant bigint := -9223372036854775808;
  c_last constant bigint := 9223372036854775807;
  v_queue constant bigint := hashtextextended(p_queue, 0);
begin
  return array(
    select k.fair_hash
    from (values (1, p_after, c_last), (2, null, null), (3, c_first, p_after)) part (place, after, upto)
      cross join lateral (
        with recursive scan (fair_hash, number) as (
          select part.after, 0
          union all
          select (
              select min(f.fair_hash)
              from unnest(p_routes) r (route)
                cross join lateral (
                  select j.fair_hash
                  from bugle.fair_ready j
                  where j.queue_hash = v_queue
                    and j.route = r.route
                    and j.fair_hash > s.fair_hash
                    and j.queue = p_queue
                  order by j.fair_hash, j.has_other_key, j.priority, j.run_at, j.id
                  limit 1) f),
            s.number + 1
          from scan s
          where s.fair_hash < part.upto
            and s.number < p_limit
        )
        select s.fair_hash, s.number
        from scan s
        where part.place = 2
          or (s.number > 0 and s.fair_hash <= part.upto)) k
    order by part.place, k.number
    limit p_limit);
end
$$;
comment on function bugle.fair_turns is
  'The fair keys of a queue that have ready jobs, as hashes, in the order of their turns.';

-- One of each key, then the next of each. p_has_other_keys: the possible values of has_other_key. The tempting form is
-- the constant "has_other_key = false", which becomes two null tests that do not match the index: a claim of 40 beside
-- a million jobs of one key took 10 s instead of 25 ms.
create or replace function bugle.next_by_turns(
  p_queue text, p_routes bigint[], p_commands text[], p_full text[], p_turns bigint[], p_has_other_keys boolean[],
  p_depth integer, p_each integer)
returns tid[]
language plpgsql stable
as $$
declare
  v_queue constant bigint := hashtextextended(p_queue, 0);
begin
  return array(
    select n.address
    from (
      select f.address, t.place, row_number() over (partition by t.place order by f.priority, f.run_at, f.id) as round
      from unnest(p_turns) with ordinality t (fair_hash, place)
        cross join unnest(p_routes) r (route)
        cross join unnest(p_has_other_keys) o (has_other_key)
        cross join lateral (
          select j.address, j.priority, j.run_at, j.id, j.is_next_in_order
          from bugle.fair_ready j
          where j.queue_hash = v_queue
            and j.route = r.route
            and j.fair_hash = t.fair_hash
            and j.has_other_key = o.has_other_key
            and j.queue = p_queue
            and j.is_in_time
            and j.command <> all (p_full)
            and bugle.serves(p_commands, j.command, j.steps, j.step)
          order by j.priority, j.run_at, j.id
          limit case when o.has_other_key then p_depth else p_each end) f
      where f.is_next_in_order
      union all
      select l.address, t.place, l.round
      from unnest(p_turns) with ordinality t (fair_hash, place)
        cross join lateral unnest(bugle.next_in_line(p_queue, p_routes, p_commands, p_full, p_depth, p_each))
          with ordinality l (address, round)
      where t.fair_hash is null) n
    where n.round <= p_each
      or cardinality(p_turns) = 1 -- no other key waits for its turn
    order by n.round, n.place);
end
$$;
comment on function bugle.next_by_turns is 'Jobs that may start, one of each fair key, then the next of each.';

create or replace function bugle.ready_routes(p_queue text, p_routes bigint[]) returns bigint[]
language plpgsql stable
as $$
begin
  return array(
    select r.route
    from unnest(p_routes) r (route)
    where (select true from bugle.ready_of(p_queue, r.route) limit 1));
end
$$;
comment on function bugle.ready_routes is
  'Which of these routes have a ready job in a queue, even if something keeps it from starting.';

-- Returns the jobs that may start now, in order, a few more than requested; when to check again if a limit per period
-- holds others back; and how far the keys were scanned. Plain reads: the last scan before a worker becomes idle uses
-- it.
--
-- At most p_reach keys are scanned. If nothing is found within them, the next claim continues behind them.
create or replace function bugle.next_starts(
  p_queue text, p_slots integer, p_routes bigint[], p_commands text[], p_without text[], p_reach integer,
  out addresses tid[], out room integer, out recheck_at timestamptz, out is_fair boolean,
  out "position" bugle.claim_positions)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
set enable_material = off set plan_cache_mode = force_generic_plan set jit = off
as $$
declare
  c_spare constant integer := 8; -- candidates beyond the room, for those that another session has locked
  c_followers constant integer := 50; -- jobs read beyond that, for those that follow others of their order key
  c_idle_keys constant integer := 200; -- fair keys read beyond that, for those of which nothing can start
  c_most_reads constant integer := 5000; -- jobs read for fair keys at most
  c_first constant bigint := -9223372036854775808;
  v_queue constant bigint := hashtextextended(p_queue, 0);
  v_routes bigint[] := p_routes;
  v_limits bugle.queues;
  v_running jsonb;
  v_command_rooms jsonb;
  v_full text[];
  v_has_order boolean;
  v_has_limits boolean;
  v_has_other_keys boolean[];
  v_turns bigint[] := array[null::bigint]; -- without fair keys, one turn for all
  v_most integer;
  v_depth integer;
  v_is_all boolean;
  v_found record;
begin
  addresses := '{}';
  is_fair := false;
  select q.* into v_limits from bugle.queues q where q.name = p_queue;
  select r.room, r.running, r.free_at into room, v_running, recheck_at
  from bugle.queue_room(v_limits, p_queue, p_slots) r;
  if room <= 0 then
    return;
  end if;
  v_command_rooms := bugle.command_rooms(p_commands, p_without);
  v_full := array(select r.key from jsonb_each_text(v_command_rooms) r where r.value = '0');
  v_has_limits := num_nonnulls(v_limits.max_running_per_key, v_limits.max_starts_per_key) > 0;
  v_has_order := exists (select from bugle.order_line j where j.queue_hash = v_queue and j.queue = p_queue);
  is_fair := exists (select from bugle.fair_ready j where j.queue_hash = v_queue and j.queue = p_queue);
  v_has_other_keys := case
    when v_has_order or exists (select from bugle.limited_ready j where j.queue_hash = v_queue and j.queue = p_queue)
    then '{f,t}' else '{f}' end;
  select c.* into "position" from bugle.claim_positions c where c.queue = p_queue;
  if cardinality(v_routes) > 1 then
    v_routes := bugle.ready_routes(p_queue, v_routes);
  end if;
  v_most := room + c_spare;
  if is_fair then
    v_turns := bugle.fair_turns(p_queue, v_routes, coalesce("position".fair_hash, c_first),
      v_most + case when v_has_order or v_has_limits then c_idle_keys else 0 end);
  end if;
  v_depth := (v_most - 1) / greatest(cardinality(v_turns), 1) + 1;

  -- a short scan first; longer ones if it does not find enough among many
  loop
    addresses := bugle.next_by_turns(p_queue, v_routes, p_commands, v_full, v_turns, v_has_other_keys,
      v_depth + case when v_has_order then c_followers else 0 end, v_depth);
    v_is_all := v_depth > v_most or v_depth * cardinality(v_turns) > c_most_reads
      or not (v_has_order or cardinality(addresses) >= v_depth);
    if v_has_limits or v_command_rooms is not null then
      select c.addresses, least(recheck_at, c.free_at) into addresses, recheck_at
      from bugle.cut_to_room(v_limits, v_running, v_command_rooms, addresses) c;
    end if;
    -- if very little can start, scanning keys is cheaper than reading on
    exit when cardinality(addresses) >= room or v_is_all
      or (3 * cardinality(addresses) < room and (v_has_order or v_has_limits));
    v_depth := 4 * v_depth;
  end loop;

  -- two rounds each: from the last position to the end, and from the start to the last position
  for v_round in 1 .. 2 loop
    exit when cardinality(addresses) >= room or not v_has_order;
    select s.addresses, s.stopped_at into v_found
    from bugle.scan_order_keys(p_queue, v_routes, p_commands, v_full, v_limits, v_running, addresses,
      case v_round when 1 then coalesce("position".order_hash, c_first) else c_first end,
      case v_round when 1 then 9223372036854775807 else coalesce("position".order_hash, c_first) end,
      room - cardinality(addresses), p_reach) s;
    addresses := addresses || v_found.addresses;
    if v_found.stopped_at is not null then
      "position".order_hash := v_found.stopped_at;
      exit;
    end if;
  end loop;
  for v_round in 1 .. 2 loop
    exit when cardinality(addresses) >= room or not v_has_limits;
    select s.addresses, s.stopped_at, s.free_at into v_found
    from bugle.scan_limit_keys(p_queue, v_routes, p_commands, v_full, v_limits, v_running, addresses,
      case v_round when 1 then coalesce("position".limit_hash, c_first) else c_first end,
      case v_round when 1 then 9223372036854775807 else coalesce("position".limit_hash, c_first) end,
      room - cardinality(addresses), p_reach) s;
    addresses := addresses || v_found.addresses;
    recheck_at := least(recheck_at, v_found.free_at);
    if v_found.stopped_at is not null then
      "position".limit_hash := v_found.stopped_at;
      exit;
    end if;
  end loop;
  if v_command_rooms is not null or (v_has_limits and v_has_order) then
    select c.addresses into addresses from bugle.cut_to_room(v_limits, v_running, v_command_rooms, addresses) c;
  end if;
end
$$;
comment on function bugle.next_starts is 'Which jobs of a queue with limits or keys may start now, in order.';

-- Lock what may start, and store how far keys were scanned. Rows that another session has locked are passed over.
--
-- The cursor of a request is not used here. But a worker that has one claims often, and scans from the start before it
-- becomes idle: fewer keys are enough.
create or replace function bugle.pick_serially(
  p_request bugle.queue_request, p_routes bigint[], p_commands text[], p_without text[],
  out addresses tid[], out turns bigint[], out limit_keys text[])
language plpgsql
as $$
declare
  c_reach constant integer := 2000;
  v_found record;
  v_before bugle.claim_positions;
  v_after bugle.claim_positions;
begin
  select s.* into v_found
  from bugle.next_starts(p_request.queue, p_request.slots, p_routes, p_commands, p_without,
    case when p_request.after is null then c_reach else least(2 * p_request.slots + 100, c_reach) end) s;
  select coalesce(array_agg(l.id), '{}'), coalesce(array_agg(l.address), '{}'), coalesce(array_agg(l.limit_key), '{}')
  into turns, addresses, limit_keys
  from (
    select u.place, locked.id, locked.address, locked.limit_key
    from unnest(v_found.addresses) with ordinality u (address, place)
      cross join lateral (
        select j.id, j.address, j.limit_key
        from bugle.ready j
        where j.address = u.address
        limit 1
        for update skip locked) locked
    order by u.place
    limit v_found.room) l;

  insert into bugle.claim_positions (queue) values (p_request.queue) on conflict do nothing;
  select c.* into v_before from bugle.claim_positions c where c.queue = p_request.queue;
  v_after := v_before;
  v_after.order_hash := coalesce((v_found."position").order_hash, v_before.order_hash);
  v_after.limit_hash := coalesce((v_found."position").limit_hash, v_before.limit_hash);
  if v_found.is_fair and cardinality(turns) > 0 then
    v_after.fair_hash := (
      select coalesce(hashtextextended(j.fair_key, 0), -9223372036854775808)
      from bugle.jobs_live j
      where j.ctid = addresses[cardinality(addresses)]);
  end if;
  -- a claim that got all it requested is followed by another
  if v_found.recheck_at is not null and cardinality(turns) < p_request.slots then
    v_after.recheck_at := v_found.recheck_at;
  end if;
  if v_after is distinct from v_before then
    update bugle.claim_positions c
    set fair_hash = v_after.fair_hash,
      order_hash = v_after.order_hash,
      limit_hash = v_after.limit_hash,
      recheck_at = v_after.recheck_at
    where c.queue = p_request.queue;
    if v_after.recheck_at is distinct from v_before.recheck_at then
      perform bugle.expect(v_after.recheck_at);
    end if;
  end if;
  if not v_found.is_fair then
    turns := null;
  end if;
end
$$;
comment on function bugle.pick_serially is
  'Lock the jobs of a queue with limits or keys that a claim takes; their ids, in order, only where they take turns.';

-- True also if only a limit per period holds jobs back and no claim has noted yet when it ends: a claim must do so.
create or replace function bugle.can_start(p_queue text, p_routes bigint[], p_commands text[]) returns boolean
language plpgsql stable
as $$
declare
  v_found record;
begin
  select s.* into v_found from bugle.next_starts(p_queue, 1, p_routes, p_commands, '{}', 20000) s;
  return cardinality(v_found.addresses) > 0
    or (v_found.recheck_at is not null
      and not exists (select from bugle.claim_positions c where c.queue = p_queue and c.recheck_at is not null)
      and bugle.ready_routes(p_queue, p_routes) <> '{}');
end
$$;
comment on function bugle.can_start is 'Whether a queue with limits or keys has a job that may start now.';
