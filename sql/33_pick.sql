-- pick exactly: the jobs that a claim takes from a queue with limits or keys. Called by bugle.claim, under the locks of 31_limits.sql.

-- Which jobs may start now, in order, a few more than asked for; when to look again if a period is what holds others back; and how
-- far the keys were hopped through. A plain read: the last look before sleep asks the same.
--
-- p_reach bounds how many keys are looked at. If nothing is found within it, the next claim goes on behind it.
create or replace function bugle.startable(
  p_queue text, p_slots integer, p_served text[], p_reach integer,
  out ids bigint[], out room integer, out look_at timestamptz, out is_fair boolean, out turn bugle.turns)
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
  v_free_at timestamptz;
begin
  ids := '{}';
  is_fair := false;
  select q.* into v_limits from bugle.queues q where q.name = p_queue;
  select r.room, r.busy, r.free_at into room, v_busy, look_at from bugle.queue_room(v_limits, p_queue, p_slots) r;
  if room <= 0 then
    return;
  end if;
  v_command_rooms := bugle.command_rooms(v_commands);
  if v_command_rooms is not null then
    v_commands := array(
      select c.command from unnest(v_commands) c (command) where coalesce((v_command_rooms ->> c.command)::integer, 1) > 0);
  end if;
  v_blocks := v_limits.order_on_retry is distinct from 'pass';
  v_has_keys := num_nonnulls(v_limits.max_running_per_key, v_limits.max_starts_per_key) > 0;
  v_has_order := exists (
    select
    from bugle.jobs_live j
    where j.order_key is not null
      and (j.state not in ('scheduled', 'waiting') or j.first_started_at is not null)
      and j.queue = p_queue);
  is_fair := exists (
    select from bugle.jobs_live j where j.state = 'ready' and j.fair_key is not null and j.queue = p_queue);
  select t.* into turn from bugle.turns t where t.queue = p_queue;

  v_most := room + 8;
  v_must_choose := v_has_keys or v_command_rooms is not null;
  if is_fair then
    v_commands := array(
      select c.command from unnest(v_commands) c (command) where bugle.has_ready(p_queue, array[c.command]));
    -- one start each; or more keys, if some of them may have nothing that can start
    v_keys := bugle.rotated(p_queue, v_commands, coalesce(turn.fair_key, ''), v_most + case when v_has_order or v_has_keys then 200 else 0 end);
  end if;
  -- a short look first; longer ones if it did not find enough among many
  v_depth := v_most;
  v_each := (v_most - 1) / greatest(cardinality(v_keys), 1) + 1;
  loop
    if is_fair then
      ids := bugle.by_turns(p_queue, v_commands, p_served, v_keys, v_blocks, v_each + case when v_has_order then 50 else 0 end, v_each);
      v_is_all := v_each >= v_most or v_each * cardinality(v_keys) > 5000;
      v_each := least(4 * v_each, v_most);
    else
      ids := bugle.in_line(p_queue, v_commands, p_served, v_command_rooms, v_blocks, v_depth + case when v_has_order then 50 else 0 end, v_depth);
      v_is_all := v_depth > v_most or not (v_has_order or cardinality(ids) >= v_depth);
      v_depth := 3 * v_most + 50;
    end if;
    if v_must_choose then
      select c.ids, c.free_at into ids, v_free_at from bugle.capped(v_limits, v_busy, v_command_rooms, ids) c;
    end if;
    -- where next to nothing can start it is better to hop than to walk
    exit when cardinality(ids) >= room or v_is_all or (3 * cardinality(ids) < room and (v_has_order or v_has_keys));
  end loop;
  look_at := least(look_at, v_free_at);

  if cardinality(ids) < room and v_has_order then
    select h.ids, h.order_key into ids, turn.order_key
    from bugle.hop_order_keys(p_queue, v_limits, v_busy, v_commands, p_served, v_blocks, coalesce(turn.order_key, ''), ids, room, p_reach) h;
    if v_must_choose then
      select c.ids, least(look_at, c.free_at) into ids, look_at from bugle.capped(v_limits, v_busy, v_command_rooms, ids) c;
    end if;
  end if;
  if cardinality(ids) < room and v_has_keys then
    select h.ids, h.limit_key, least(look_at, h.free_at) into ids, turn.limit_key, look_at
    from bugle.hop_limit_keys(v_limits, v_busy, v_commands, p_served, coalesce(turn.limit_key, ''), ids, room, p_reach) h;
    select c.ids into ids from bugle.capped(v_limits, v_busy, v_command_rooms, ids) c;
  end if;
  ids := ids[1:v_most];
end
$$;
comment on function bugle.startable is 'Which jobs of a queue with limits or keys may start now, in order.';
revoke execute on function bugle.startable from public;

-- Fair keys in the order of their turns: those behind the last, then from the beginning. Those without a key begin the round.
create or replace function bugle.rotated(p_queue text, p_commands text[], p_after text, p_limit integer) returns text[]
language plpgsql stable
as $$
declare
  v_keys text[] := bugle.next_fair_keys(p_queue, p_commands, p_after, p_limit);
begin
  if cardinality(v_keys) < p_limit then
    v_keys := v_keys || ''::text || array(
      select k.key
      from unnest(bugle.next_fair_keys(p_queue, p_commands, '', p_limit - cardinality(v_keys))) k (key)
      where k.key <= p_after);
  end if;
  return v_keys;
end
$$;
comment on function bugle.rotated is 'The fair keys of a queue in the order of their turns.';
revoke execute on function bugle.rotated from public;

-- The first of each order key, from behind one on and round to it again, until there are enough.
create or replace function bugle.hop_order_keys(
  p_queue text, p_limits bugle.queues, p_busy jsonb, p_commands text[], p_served text[], p_blocks boolean, p_after text, p_ids bigint[],
  p_limit integer, p_reach integer, out ids bigint[], out order_key text)
language plpgsql stable
as $$
declare
  v_keys text[];
  v_seen integer := 0;
  v_is_round boolean := p_after = '';
begin
  ids := p_ids;
  order_key := p_after;
  while cardinality(ids) < p_limit and v_seen < p_reach loop
    v_keys := bugle.next_order_keys(p_queue, order_key, least(2::bigint * (p_limit - cardinality(ids)) + 20, p_reach - v_seen)::integer);
    if cardinality(v_keys) = 0 then
      exit when v_is_round;
      v_is_round := true;
      order_key := '';
      continue;
    end if;
    ids := ids || array(
      select h.id
      from unnest(v_keys) k (key)
        cross join lateral (
          select j.id, j.state, j.command, j.steps, j.step, j.deadline, j.priority, j.limit_key
          from bugle.jobs_live j
          where j.queue = p_queue
            and j.order_key = k.key
            and (j.state not in ('scheduled', 'waiting') or j.first_started_at is not null)
          order by case j.state when 'running' then 0 when 'ready' then 1 else 2 end, j.id
          limit 1) h
      where h.state = 'ready'
        and h.command = any (p_commands)
        and bugle.serves(p_served, h.command, h.steps, h.step)
        and (h.deadline is null or h.deadline > now())
        and h.id <> all (ids)
        and (not p_blocks or (
          select true
          from bugle.jobs_live b
          where b.queue = p_queue
            and b.order_key = k.key
            and (b.state not in ('scheduled', 'waiting') or b.first_started_at is not null)
            and case b.state when 'running' then 0 when 'ready' then 1 else 2 end = 2
            and b.id < h.id
          limit 1) is null)
        and (h.limit_key is null
          or num_nonnulls(p_limits.max_running_per_key, p_limits.max_starts_per_key) = 0
          or (select r.room from bugle.key_rooms(p_limits, p_busy, array[h.limit_key]) r) > 0)
      order by h.priority, h.id);
    v_seen := v_seen + cardinality(v_keys);
    order_key := v_keys[cardinality(v_keys)];
    exit when v_is_round and p_after <> '' and order_key >= p_after;
  end loop;
end
$$;
comment on function bugle.hop_order_keys is 'More candidates: the first job of each order key, from behind a key on.';
revoke execute on function bugle.hop_order_keys from public;

-- As many of each limit key as it has room for.
create or replace function bugle.hop_limit_keys(
  p_limits bugle.queues, p_busy jsonb, p_commands text[], p_served text[], p_after text, p_ids bigint[], p_limit integer,
  p_reach integer, out ids bigint[], out limit_key text, out free_at timestamptz)
language plpgsql stable
as $$
declare
  v_keys text[];
  v_seen integer := 0;
  v_found bigint[];
  v_free_at timestamptz;
  v_is_round boolean := p_after = '';
begin
  ids := p_ids;
  limit_key := p_after;
  while cardinality(ids) < p_limit and v_seen < p_reach loop
    v_keys := bugle.next_limit_keys(p_limits.name, p_commands, limit_key, least(2::bigint * (p_limit - cardinality(ids)) + 20, p_reach - v_seen)::integer);
    if cardinality(v_keys) = 0 then
      exit when v_is_round;
      v_is_round := true;
      limit_key := '';
      continue;
    end if;
    with keys as materialized (
      select r.key, r.room, r.free_at
      from bugle.key_rooms(p_limits, p_busy, v_keys) r
    )
    select array(
        select w.id
        from keys k
          cross join lateral (
            select m.id, m.priority
            from unnest(p_commands) c (command)
              cross join lateral (
                select j.id, j.priority
                from bugle.jobs_live j
                where j.state = 'ready'
                  and j.limit_key is not null
                  and j.queue = p_limits.name
                  and j.command = c.command
                  and j.limit_key = k.key
                  and bugle.serves(p_served, j.command, j.steps, j.step)
                  and (j.deadline is null or j.deadline > now())
                  and j.order_key is null
                order by j.priority, j.id
                limit least(k.room, p_limit)) m
            order by m.priority, m.id
            limit least(k.room, p_limit)) w
        where k.room > 0
          and w.id <> all (ids)
        order by w.priority, w.id),
      (select min(k.free_at) from keys k)
    into v_found, v_free_at;
    ids := ids || v_found;
    free_at := least(free_at, v_free_at);
    v_seen := v_seen + cardinality(v_keys);
    limit_key := v_keys[cardinality(v_keys)];
    exit when v_is_round and p_after <> '' and limit_key >= p_after;
  end loop;
end
$$;
comment on function bugle.hop_limit_keys is 'More candidates: jobs of each limit key that has room, from behind a key on.';
revoke execute on function bugle.hop_limit_keys from public;

-- Lock what may start, and remember whose turn is next. Rows that somebody else has locked are passed over.
--
-- The cursor of a request says nothing here about where to begin. But a worker that has one asks often, be it that it finds enough
-- or that a look from the beginning is dear, and does look from the beginning before it believes that there is nothing: fewer keys
-- will do.
create or replace function bugle.pick_exactly(
  p_request bugle.queue_request, p_commands text[], out ids bigint[], out places tid[])
language plpgsql
as $$
declare
  v_found record;
  v_before bugle.turns;
  v_after bugle.turns;
begin
  select s.* into v_found
  from bugle.startable(p_request.queue, p_request.slots, p_commands,
    case when p_request.after_id is null then 2000 else least(2::bigint * p_request.slots + 100, 2000)::integer end) s;
  select coalesce(array_agg(l.id order by l.place), '{}'), coalesce(array_agg(l.ctid order by l.place), '{}')
  into ids, places
  from (
    select u.place, locked.id, locked.ctid
    from unnest(v_found.ids) with ordinality u (id, place)
      cross join lateral (
        select j.id, j.ctid
        from bugle.jobs_live j
        where j.id = u.id
          and j.state = 'ready'
        limit 1
        for update skip locked) locked
    order by u.place
    limit v_found.room) l;

  select t.* into v_before from bugle.turns t where t.queue = p_request.queue;
  v_before := (p_request.queue, coalesce(v_before.fair_key, ''), coalesce(v_before.order_key, ''), coalesce(v_before.limit_key, ''),
    v_before.look_at)::bugle.turns;
  v_after := v_before;
  v_after.order_key := coalesce((v_found.turn).order_key, '');
  v_after.limit_key := coalesce((v_found.turn).limit_key, '');
  if v_found.is_fair and cardinality(ids) > 0 then
    v_after.fair_key := (select coalesce(j.fair_key, '') from bugle.jobs_live j where j.id = ids[cardinality(ids)]);
  end if;
  -- whoever got all it asked for will find out later
  if v_found.look_at is not null and cardinality(ids) < p_request.slots then
    v_after.look_at := v_found.look_at;
  end if;
  if v_after is distinct from v_before then
    insert into bugle.turns as t (queue, fair_key, order_key, limit_key, look_at)
    values (v_after.queue, v_after.fair_key, v_after.order_key, v_after.limit_key, v_after.look_at)
    on conflict (queue) do update
    set fair_key = excluded.fair_key,
      order_key = excluded.order_key,
      limit_key = excluded.limit_key,
      look_at = excluded.look_at;
    if v_after.look_at is distinct from v_before.look_at then
      perform bugle.expect(v_after.look_at);
    end if;
  end if;
end
$$;
comment on function bugle.pick_exactly is 'Lock the jobs of a queue with limits or keys that a claim takes, in the order in which they start.';
revoke execute on function bugle.pick_exactly from public;

-- Whether a claim would find something. If only a period is in the way, and nobody has noted when it is over, a claim must do so.
create or replace function bugle.can_start(p_queue text, p_commands text[]) returns boolean
language plpgsql stable
as $$
declare
  v_found record;
begin
  select s.* into v_found from bugle.startable(p_queue, 1, p_commands, 20000) s;
  return cardinality(v_found.ids) > 0
    or (v_found.look_at is not null and not exists (
      select from bugle.turns t where t.queue = p_queue and t.look_at is not null) and bugle.has_ready(p_queue, bugle.with_chains(p_commands)));
end
$$;
comment on function bugle.can_start is 'Whether a queue with limits or keys has a job that may start now.';
revoke execute on function bugle.can_start from public;

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
          where j.state = 'ready' and j.fair_key is not null and j.queue = p_queue and j.command = c.command
          limit 1)) found);
end
$$;
comment on function bugle.has_ready is 'Whether a queue has a ready job of one of these commands, whatever holds it back.';
revoke execute on function bugle.has_ready from public;
