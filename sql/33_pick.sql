-- pick exactly: the jobs that a claim takes from a queue with limits or keys. Called by bugle.claim, under the locks of 31_limits.sql.

-- Which jobs may start now, in order, a few more than asked for, as the addresses of their rows, which stay theirs while the statement that asked goes on; when to look again if a period is what holds others back; and how
-- far the keys were hopped through. A plain read: the last look before sleep asks the same.
--
-- p_reach bounds how many keys are looked at. If nothing is found within it, the next claim goes on behind it.
create or replace function bugle.next_starts(
  p_queue text, p_slots integer, p_served text[], p_reach integer,
  out addresses tid[], out room integer, out recheck_at timestamptz, out is_fair boolean, out turn bugle.claim_positions)
language plpgsql stable
set enable_seqscan = off
set enable_bitmapscan = off
set enable_mergejoin = off
set enable_material = off
set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  v_limits bugle.queues;
  v_blocks boolean;
  v_has_order boolean;
  v_has_limit_keys boolean;
  v_has_keys boolean;
  v_busy jsonb;
  v_command_rooms jsonb;
  v_commands text[] := bugle.with_chains(p_served);
  v_most integer;
  v_depth integer;
  v_each integer;
  v_is_all boolean;
  v_must_choose boolean;
  v_keys text[];
  v_heads tid[];
  v_place integer;
  v_free_at timestamptz;
begin
  addresses := '{}';
  is_fair := false;
  select q.* into v_limits from bugle.queues q where q.name = p_queue;
  select r.room, r.busy, r.free_at into room, v_busy, recheck_at from bugle.queue_room(v_limits, p_queue, p_slots) r;
  if room <= 0 then
    return;
  end if;
  v_command_rooms := bugle.command_rooms(v_commands);
  if v_command_rooms is not null then
    v_commands := array(
      select c.command from unnest(v_commands) c (command) where coalesce((v_command_rooms ->> c.command)::integer, 1) > 0);
  end if;
  -- seed: retry_lets_others_pass
  v_blocks := v_limits.order_on_retry is distinct from 'pass';
  v_has_keys := num_nonnulls(v_limits.max_running_per_key, v_limits.max_starts_per_key) > 0;
  v_has_order := exists (
    select
    from bugle.jobs_live j
    where j.order_key is not null
      and (j.state not in ('scheduled', 'waiting') or j.first_started_at is not null)
      and hashtextextended(j.queue, 0) = hashtextextended(p_queue, 0)
      and j.queue = p_queue);
  is_fair := exists (
    select
    from bugle.jobs_live j
    where j.state = 'ready'
      and j.fair_key is not null
      and hashtextextended(j.queue, 0) = hashtextextended(p_queue, 0)
      and j.queue = p_queue);
  select t.* into turn from bugle.claim_positions t where t.queue = p_queue;

  v_most := room + 8;
  v_must_choose := v_has_keys or v_command_rooms is not null;
  if is_fair then
    v_commands := array(
      select c.command from unnest(v_commands) c (command) where bugle.has_ready(p_queue, array[c.command]));
    v_has_limit_keys := exists (
      select
      from bugle.jobs_live j
      where j.state = 'ready'
        and j.limit_key is not null
        and hashtextextended(j.queue, 0) = hashtextextended(p_queue, 0)
        and j.queue = p_queue);
    -- one start each; or more keys, if some of them may have nothing that can start
    select h.keys, h.heads into v_keys, v_heads
    from bugle.firsts_by_turn(p_queue, v_commands, p_served, v_has_order or v_has_limit_keys, coalesce(turn.fair_key, ''), v_most + case when v_has_order or v_has_keys then 200 else 0 end) h;
  end if;
  -- a short look first; longer ones if it did not find enough among many
  v_depth := v_most;
  v_each := (v_most - 1) / greatest(cardinality(v_keys), 1) + 1;
  loop
    if is_fair and v_each = 1 and array_position(v_heads, null) is not distinct from array_position(v_keys, '')
      and cardinality(array_positions(v_heads, null)) <= 1
    then
      -- one of each, and of each it is known which
      addresses := array_remove(v_heads, null);
      if '' = any (v_keys) then
        v_place := array_position(v_keys, '');
        addresses := addresses[1:v_place - 1]
          || (bugle.next_in_line(p_queue, v_commands, p_served, null, v_blocks, 1 + case when v_has_order then 50 else 0 end, 1))[1:1]
          || addresses[v_place:];
      end if;
      v_is_all := false;
      v_each := least(4, v_most);
    elsif is_fair then
      addresses := bugle.next_by_turns(p_queue, v_commands, p_served, v_keys, v_blocks, v_each + case when v_has_order then 50 else 0 end, v_each);
      v_is_all := v_each >= v_most or v_each * cardinality(v_keys) > 5000;
      v_each := least(4 * v_each, v_most);
    else
      addresses := bugle.next_in_line(p_queue, v_commands, p_served, v_command_rooms, v_blocks, v_depth + case when v_has_order then 50 else 0 end, v_depth);
      v_is_all := v_depth > v_most or not (v_has_order or cardinality(addresses) >= v_depth);
      v_depth := 3 * v_most + 50;
    end if;
    if v_must_choose then
      select c.addresses, c.free_at into addresses, v_free_at from bugle.cut_to_room(v_limits, v_busy, v_command_rooms, addresses) c;
    end if;
    -- where next to nothing can start it is better to hop than to walk
    exit when cardinality(addresses) >= room or v_is_all or (3 * cardinality(addresses) < room and (v_has_order or v_has_keys));
  end loop;
  recheck_at := least(recheck_at, v_free_at);

  if cardinality(addresses) < room and cardinality(v_commands) > 1 then
    v_commands := array(
      select c.command from unnest(v_commands) c (command) where bugle.has_ready(p_queue, array[c.command]));
  end if;
  if cardinality(addresses) < room and v_has_order then
    select h.addresses, h.order_key into addresses, turn.order_key
    from bugle.hop_orders(p_queue, v_limits, v_busy, v_commands, p_served, v_blocks, coalesce(turn.order_key, ''), addresses, room, p_reach) h;
    if v_must_choose then
      select c.addresses, least(recheck_at, c.free_at) into addresses, recheck_at from bugle.cut_to_room(v_limits, v_busy, v_command_rooms, addresses) c;
    end if;
  end if;
  if cardinality(addresses) < room and v_has_keys then
    select h.addresses, h.limit_key, least(recheck_at, h.free_at) into addresses, turn.limit_key, recheck_at
    from bugle.hop_limits(v_limits, v_busy, v_commands, p_served, coalesce(turn.limit_key, ''), addresses, room, p_reach) h;
    if v_command_rooms is not null then
      select c.addresses into addresses from bugle.cut_to_room(v_limits, v_busy, v_command_rooms, addresses) c;
    end if;
  end if;
  addresses := addresses[1:v_most];
end
$$;
comment on function bugle.next_starts is 'Which jobs of a queue with limits or keys may start now, in order.';

-- Lock what may start, and remember whose turn is next. Rows that somebody else has locked are passed over.
--
-- The cursor of a request says nothing here about where to begin. But a worker that has one asks often, be it that it finds enough
-- or that a look from the beginning is dear, and does look from the beginning before it believes that there is nothing: fewer keys
-- will do.
create or replace function bugle.pick_exactly(
  p_request bugle.queue_request, p_commands text[], out ids bigint[], out places tid[], out limit_keys text[])
language plpgsql
as $$
declare
  v_found record;
  v_before bugle.claim_positions;
  v_after bugle.claim_positions;
begin
  select s.* into v_found
  from bugle.next_starts(p_request.queue, p_request.slots, p_commands,
    case when p_request.after_id is null then 2000 else least(2::bigint * p_request.slots + 100, 2000)::integer end) s;
  select coalesce(array_agg(l.id), '{}'), coalesce(array_agg(l.ctid), '{}'), coalesce(array_agg(l.limit_key), '{}')
  into ids, places, limit_keys
  from (
    select u.place, locked.id, locked.ctid, locked.limit_key
    from unnest(v_found.addresses) with ordinality u (address, place)
      cross join lateral (
        select j.id, j.ctid, j.limit_key
        from bugle.jobs_live j
        where j.ctid = u.address
          and j.state = 'ready'
        limit 1
        for update skip locked) locked
    order by u.place
    limit v_found.room) l;

  select t.* into v_before from bugle.claim_positions t where t.queue = p_request.queue;
  v_before := (p_request.queue, coalesce(v_before.fair_key, ''), coalesce(v_before.order_key, ''), coalesce(v_before.limit_key, ''),
    v_before.recheck_at)::bugle.claim_positions;
  v_after := v_before;
  v_after.order_key := coalesce((v_found.turn).order_key, v_before.order_key);
  v_after.limit_key := coalesce((v_found.turn).limit_key, v_before.limit_key);
  if v_found.is_fair and cardinality(ids) > 0 then
    v_after.fair_key := (select coalesce(j.fair_key, '') from bugle.jobs_live j where j.id = ids[cardinality(ids)]);
  end if;
  -- whoever got all it asked for will find out later
  if v_found.recheck_at is not null and cardinality(ids) < p_request.slots then
    v_after.recheck_at := v_found.recheck_at;
  end if;
  if v_after is distinct from v_before then
    insert into bugle.claim_positions as t (queue, fair_key, order_key, limit_key, recheck_at)
    values (v_after.queue, v_after.fair_key, v_after.order_key, v_after.limit_key, v_after.recheck_at)
    on conflict (queue) do update
    set fair_key = excluded.fair_key,
      order_key = excluded.order_key,
      limit_key = excluded.limit_key,
      recheck_at = excluded.recheck_at;
    if v_after.recheck_at is distinct from v_before.recheck_at then
      perform bugle.expect(v_after.recheck_at);
    end if;
  end if;
  if not v_found.is_fair then
    ids := null;
  end if;
end
$$;
comment on function bugle.pick_exactly is 'Lock the jobs of a queue with limits or keys that a claim takes; their ids only where they start by turns, in that order.';

-- Whether a claim would find something. If only a period is in the way, and nobody has noted when it is over, a claim must do so.
create or replace function bugle.can_start(p_queue text, p_commands text[]) returns boolean
language plpgsql stable
as $$
declare
  v_found record;
begin
  select s.* into v_found from bugle.next_starts(p_queue, 1, p_commands, 20000) s;
  return cardinality(v_found.addresses) > 0
    or (v_found.recheck_at is not null and not exists (
      select from bugle.claim_positions t where t.queue = p_queue and t.recheck_at is not null) and bugle.has_ready(p_queue, bugle.with_chains(p_commands)));
end
$$;
comment on function bugle.can_start is 'Whether a queue with limits or keys has a job that may start now.';

create or replace function bugle.has_ready(p_queue text, p_commands text[]) returns boolean
language plpgsql stable
as $$
begin
  return exists (
    select
    from unnest(p_commands) c (command)
      cross join lateral (
        (
          select
          from bugle.jobs_live j
          where j.state = 'ready' and j.fair_key is null and j.order_key is null and j.limit_key is null
            and j.queue = p_queue and j.command = c.command
          limit 1)
        union all
        (
          select
          from bugle.jobs_live j
          where j.state = 'ready' and j.fair_key is null and (j.order_key is not null or j.limit_key is not null)
            and j.queue = p_queue and j.command = c.command
          limit 1)
        union all
        (
          select
          from bugle.jobs_live j
          where j.state = 'ready' and j.fair_key is not null
            and hashtextextended(j.queue, 0) = hashtextextended(p_queue, 0) and hashtextextended(j.command, 0) = hashtextextended(c.command, 0)
            and j.queue = p_queue and j.command = c.command
          limit 1)) found);
end
$$;
comment on function bugle.has_ready is 'Whether a queue has a ready job of one of these commands, whatever holds it back.';
