-- fair: which jobs of a queue with limits or keys start next, in which order, and how a claim takes them.
--
-- With fair keys, the keys take turns, one start each, beginning behind the key that started last; within a key by
-- priority, due time and id. Jobs without a fair key take turns as one more key, at the end of the round. In a queue
-- without fair keys, jobs start by priority, due time and id.

-- One of each key, then the next of each. Of jobs that no other key can hold back, p_each are read of each fair key and
-- route; of the others p_depth.
--
-- The tempting form for has_other_key is a constant, "= false". It becomes two null tests that do not match the index:
-- a claim of 40 beside a million jobs of one key took 10 s instead of 25 ms.
create or replace function bugle.next_by_turns(
  p_search bugle.start_search, p_turns bigint[], p_each integer, p_depth integer)
returns tid[]
language plpgsql stable
as $$
begin
  return array(
    select n.address
    from (
      select f.address, t.place, row_number() over (partition by t.place order by f.priority, f.run_at, f.id) as round
      from unnest(p_turns) with ordinality t (fair_hash, place)
        cross join unnest(p_search.routes) r (route)
        cross join (values (false, p_each), (true, p_depth)) o (has_other_key, most)
        cross join lateral (
          (
            select j.address, j.priority, j.run_at, j.id, j.is_next_in_order
            from bugle.fair_ready j
            where j.queue_hash = hashtextextended(p_search.queue, 0)
              and j.route = r.route
              and j.fair_hash = t.fair_hash
              and j.has_other_key = o.has_other_key
              and j.queue = p_search.queue
              and bugle.may_start(p_search, j.command, j.steps, j.step, j.is_in_time)
            order by j.priority, j.run_at, j.id
            limit o.most)
          union all
          (
            select j.address, j.priority, j.run_at, j.id, true
            from bugle.plain_ready j
            where t.fair_hash = bugle.lowest_hash()
              and not o.has_other_key
              and j.queue = p_search.queue
              and j.route = r.route
              and bugle.may_start(p_search, j.command, j.steps, j.step, j.is_in_time)
            order by j.priority, j.run_at, j.id
            limit o.most)
          union all
          (
            select j.address, j.priority, j.run_at, j.id, j.is_next_in_order
            from bugle.keyed_ready j
            where t.fair_hash = bugle.lowest_hash()
              and o.has_other_key
              and j.queue = p_search.queue
              and j.route = r.route
              and bugle.may_start(p_search, j.command, j.steps, j.step, j.is_in_time)
            order by j.priority, j.run_at, j.id
            limit o.most)) f
      where f.is_next_in_order) n
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
  out reached bugle.claim_positions)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
set enable_material = off set plan_cache_mode = force_generic_plan set jit = off
as $$
declare
  c_spare constant integer := 8; -- candidates beyond the room, for those that another session has locked
  c_followers constant integer := 50; -- jobs read beyond that, for those that follow others of their order key
  c_idle_keys constant integer := 200; -- fair keys read beyond that, for those of which nothing can start
  c_most_reads constant integer := 5000; -- jobs read for fair keys at most
  v_search bugle.start_search;
  v_has_order boolean;
  v_has_limits boolean;
  v_is_held boolean; -- whether keys can hold jobs back
  v_turns bigint[];
  v_most integer;
  v_depth integer;
  v_is_all boolean;
begin
  addresses := '{}';
  is_fair := false;
  reached := coalesce((select c from bugle.claim_positions c where c.queue = p_queue),
    (p_queue, bugle.lowest_hash(), bugle.lowest_hash(), bugle.lowest_hash(), null)::bugle.claim_positions);
  v_search.queue := p_queue;
  v_search.limits := (select q from bugle.queues q where q.name = p_queue);
  select r.room, r.running, r.free_at into room, v_search.running, recheck_at
  from bugle.queue_room(v_search.limits, p_queue, p_slots) r;
  if room <= 0 then
    return;
  end if;
  v_search.commands := p_commands;
  v_search.command_rooms := bugle.command_rooms(p_commands, p_without);
  v_search.routes := bugle.ready_routes(p_queue, p_routes);
  v_has_limits := num_nonnulls((v_search.limits).max_running_per_key, (v_search.limits).max_starts_per_key) > 0;
  v_has_order := exists (
    select from bugle.order_line j where j.queue_hash = hashtextextended(p_queue, 0) and j.queue = p_queue);
  v_is_held := v_has_order or v_has_limits;
  v_most := room + c_spare;
  v_turns := array(
    select k.hash
    from bugle.keys_of('fair', p_queue, v_search.routes, reached.fair_hash) k
    limit v_most + case when v_is_held then c_idle_keys else 0 end);
  is_fair := cardinality(v_turns) > 1; -- those without a fair key have one turn
  v_depth := (v_most - 1) / cardinality(v_turns) + 1;

  -- a short scan first; longer ones if it does not find enough among many
  loop
    addresses := bugle.next_by_turns(v_search, v_turns, v_depth,
      v_depth + case when v_has_order then c_followers else 0 end);
    v_is_all := v_depth > v_most or v_depth * cardinality(v_turns) > c_most_reads
      or not (v_has_order or cardinality(addresses) >= v_depth);
    if v_has_limits or v_search.command_rooms is not null then
      select c.addresses, least(recheck_at, c.free_at) into addresses, recheck_at
      from bugle.cut_to_room(v_search, addresses) c;
    end if;
    -- if very little can start, scanning keys is cheaper than reading on
    exit when cardinality(addresses) >= room or v_is_all or (v_is_held and 3 * cardinality(addresses) < room);
    v_depth := 4 * v_depth;
  end loop;

  if v_is_held and cardinality(addresses) < room then
    if v_has_order then
      select next_starts.addresses || s.addresses, s.stopped_at into addresses, reached.order_hash
      from bugle.scan_order_keys(v_search, addresses, reached.order_hash, room - cardinality(addresses), p_reach) s;
    end if;
    if v_has_limits and cardinality(addresses) < room then
      select next_starts.addresses || s.addresses, s.stopped_at, least(recheck_at, s.free_at)
      into addresses, reached.limit_hash, recheck_at
      from bugle.scan_limit_keys(v_search, addresses, reached.limit_hash, room - cardinality(addresses), p_reach) s;
    end if;
    if v_has_limits or v_search.command_rooms is not null then
      addresses := (bugle.cut_to_room(v_search, addresses)).addresses;
    end if;
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
  out addresses tid[], out turns bigint[])
language plpgsql
as $$
declare
  c_reach constant integer := 2000; -- keys scanned at most
  c_spare_reach constant integer := 100; -- keys scanned behind a cursor, beyond two for each slot
  v_found record;
  v_position bugle.claim_positions;
begin
  select s.* into v_found
  from bugle.next_starts(p_request.queue, p_request.slots, p_routes, p_commands, p_without,
    case when p_request.after is null then c_reach else least(2 * p_request.slots + c_spare_reach, c_reach) end) s;
  select coalesce(array_agg(l.address), '{}'), coalesce(array_agg(l.id) filter (where v_found.is_fair), '{}')
  into addresses, turns
  from (
    select locked.id, locked.address
    from unnest(v_found.addresses) with ordinality u (address, place)
      cross join lateral (
        select j.id, j.address from bugle.ready j where j.address = u.address limit 1 for update skip locked) locked
    order by u.place
    limit v_found.room) l;

  v_position := v_found.reached;
  if cardinality(turns) > 0 then
    v_position.fair_hash := (
      select coalesce(hashtextextended(j.fair_key, 0), bugle.lowest_hash())
      from bugle.jobs_live j
      where j.ctid = addresses[cardinality(addresses)]);
  end if;
  -- a claim that got all it requested is followed by another
  if v_found.recheck_at <> coalesce(v_position.recheck_at, 'infinity') and cardinality(addresses) < p_request.slots then
    v_position.recheck_at := v_found.recheck_at;
    perform bugle.expect(v_position.recheck_at);
  end if;
  insert into bugle.claim_positions as c
  values (v_position.*)
  on conflict (queue) do update
  set (fair_hash, order_hash, limit_hash, recheck_at) = (
    excluded.fair_hash, excluded.order_hash, excluded.limit_hash, excluded.recheck_at)
  where c is distinct from excluded;
end
$$;
comment on function bugle.pick_serially is
  'Lock the jobs of a queue with limits or keys that a claim takes. Where they take turns, also their ids, in order.';

-- True also if only a limit per period holds jobs back and no claim has noted yet when it ends: a claim must do so.
create or replace function bugle.can_start(p_queue text, p_routes bigint[], p_commands text[]) returns boolean
language plpgsql stable
as $$
declare
  c_reach constant integer := 20000; -- keys scanned at most: after this scan the worker sleeps
  v_found record;
begin
  select s.* into v_found from bugle.next_starts(p_queue, 1, p_routes, p_commands, '{}', c_reach) s;
  return cardinality(v_found.addresses) > 0
    or (v_found.recheck_at is not null
      and not exists (select from bugle.claim_positions c where c.queue = p_queue and c.recheck_at is not null)
      and bugle.ready_routes(p_queue, p_routes) <> '{}');
end
$$;
comment on function bugle.can_start is 'Whether a queue with limits or keys has a job that may start now.';
