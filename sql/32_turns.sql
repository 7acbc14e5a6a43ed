-- turns: which jobs of a queue with limits or keys may start next, and in which order. Used by claims, and by the look before sleep.
--
--   Jobs without a fair key come by priority and id. With fair keys, the keys take turns, one start each (those that have none are
--   one of them), beginning behind the key that started last; within a key by priority and id.
--   Of an order key only the first may start, and only if none of the key runs; and, if the queue says block, only if no earlier
--   one is retrying, paused or waiting, or was put off after it had started. jobs_live_ordered has what runs of a key first, then
--   what may be in the way, then what is ready: mostly one look tells. It stands in each query below: as a function of its own it
--   took six times as long.
--   Of a limit key as many as there is room for.
-- p_commands has the names of chains in it too (bugle.with_chains); of a chain all that is left must be served.
-- p_commands are the names to look for, with those of chains; p_served is what the worker has executors for.
--
-- Nothing here walks over the followers of a job, or the jobs of a key that is full: a few rows are looked at in order, and if too
-- many of them cannot start, the keys are hopped through by index, from where the last claim stopped.

-- Candidates in their order, cut to what their keys and commands have room for.
create or replace function bugle.cut_to_room(
  p_limits bugle.queues, p_busy jsonb, p_commands jsonb, p_addresses tid[], out addresses tid[], out free_at timestamptz)
language plpgsql stable
set enable_hashjoin = on
as $$
declare
  v_keys text[] := '{}';
  v_rooms integer[];
  v_is_over boolean;
begin
  if num_nonnulls(p_limits.max_running_per_key, p_limits.max_starts_per_key) > 0 then
    with wanted as materialized (
      select j.limit_key, count(*) as jobs
      from unnest(p_addresses) u (address)
        cross join lateral (
          select l.limit_key from bugle.jobs_live l where l.ctid = u.address limit 1) j
      where j.limit_key is not null
      group by j.limit_key
    )
    select array_agg(r.key), array_agg(r.room), bool_or(r.room < w.jobs), min(r.free_at) into v_keys, v_rooms, v_is_over, free_at
    from bugle.key_rooms(p_limits, p_busy, array(select w.limit_key from wanted w)) r
      join wanted w on w.limit_key = r.key;
  end if;
  -- mostly there is room for all of them
  if v_is_over is not true and p_commands is null then
    addresses := p_addresses;
    return;
  end if;
  with picked as materialized (
    select u.place, u.address, j.limit_key, j.command
    from unnest(p_addresses) with ordinality u (address, place)
      cross join lateral (
        select l.limit_key, l.command from bugle.jobs_live l where l.ctid = u.address limit 1) j
  ), within_keys as (
    select p.place, p.address, p.command, r.room, row_number() over (partition by p.limit_key order by p.place) as number
    from picked p
      left join unnest(v_keys, v_rooms) r (key, room) on r.key = p.limit_key
  ), within_commands as (
    select w.place, w.address, (p_commands ->> w.command)::integer as room, row_number() over (partition by w.command order by w.place) as number
    from within_keys w
    where w.room is null
      or w.number <= w.room
  )
  select coalesce(array_agg(w.address order by w.place), '{}') into addresses
  from within_commands w
  where w.room is null
    or w.number <= w.room;
end
$$;
comment on function bugle.cut_to_room is 'Candidates, cut to what their limit keys and commands have room for; and when a key has room again.';

-- By priority and id: jobs without a fair key. Those without any key can always start; among the others only so many are looked at.
create or replace function bugle.next_in_line(
  p_queue text, p_commands text[], p_served text[], p_rooms jsonb, p_blocks boolean, p_depth integer, p_limit integer)
returns tid[]
language plpgsql stable
as $$
declare
  v_queue constant bigint := hashtextextended(p_queue, 0);
begin
  return array(
    select w.address
    from unnest(p_commands) c (command)
      cross join lateral (
        (
          select j.ctid as address, j.id, j.priority
          from bugle.jobs_live j
          where j.state = 'ready'
            and j.fair_key is null
            and j.order_key is null
            and j.limit_key is null
            and j.queue = p_queue
            and j.command = c.command
            and bugle.serves(p_served, j.command, j.steps, j.step)
            and (j.deadline is null or j.deadline > now())
          order by j.priority, j.id
          limit least(p_limit, (p_rooms ->> c.command)::integer))
        union all
        (
          select i.address, i.id, i.priority
          from (
            select l.*, lag(l.order_key) over w as key_before, lag(l.id) over w as id_before
            from (
              select j.ctid as address, j.id, j.priority, j.order_key
              from bugle.jobs_live j
              where j.state = 'ready'
                and j.fair_key is null
                and (j.order_key is not null or j.limit_key is not null)
                and j.queue = p_queue
                and j.command = c.command
                and bugle.serves(p_served, j.command, j.steps, j.step)
                and (j.deadline is null or j.deadline > now())
              order by j.priority, j.id
              limit p_depth) l
            window w as (order by l.priority, l.id)) i
          where i.order_key is null
            or ((i.order_key is distinct from i.key_before or i.id < i.id_before) and (
              select case h.state
                  when 'ready' then h.id = i.id
                  when 'running' then false
                  else (h.id > i.id or not p_blocks) and i.id = (
                    select r.id
                    from bugle.jobs_live r
                    where hashtextextended(r.queue, 0) = v_queue
                      and hashtextextended(r.order_key, 0) = hashtextextended(i.order_key, 0)
                      and r.queue = p_queue
                      and r.order_key = i.order_key
                      and (r.state not in ('scheduled', 'waiting') or r.first_started_at is not null)
                      and case r.state when 'running' then 0 when 'ready' then 2 else 1 end = 2
                    order by r.id
                    limit 1)
                end
              from bugle.jobs_live h
              where hashtextextended(h.queue, 0) = v_queue
                and hashtextextended(h.order_key, 0) = hashtextextended(i.order_key, 0)
                and h.queue = p_queue
                and h.order_key = i.order_key
                and (h.state not in ('scheduled', 'waiting') or h.first_started_at is not null)
              order by case h.state when 'running' then 0 when 'ready' then 2 else 1 end, h.id
              limit 1)))) w
    order by w.priority, w.id);
end
$$;
comment on function bugle.next_in_line is 'Jobs without a fair key that may start, by priority and id, among the first so many.';

-- One of each key, then the next of each. The key '' stands for jobs that have none.
create or replace function bugle.next_by_turns(
  p_queue text, p_commands text[], p_served text[], p_keys text[], p_blocks boolean, p_depth integer, p_each integer)
returns tid[]
language plpgsql stable
as $$
declare
  v_queue constant bigint := hashtextextended(p_queue, 0);
begin
  return array(
    select t.address
    from (
      select w.address, k.place, row_number() over (partition by k.place order by w.priority, w.id) as round
      from unnest(p_keys) with ordinality k (key, place)
        cross join lateral (
          select m.address, m.id, m.priority
          from unnest(p_commands) c (command)
            cross join lateral (
              (
                select j.ctid as address, j.id, j.priority
                from bugle.jobs_live j
                where j.state = 'ready'
                  and j.fair_key is not null
                  and hashtextextended(j.queue, 0) = v_queue
                  and hashtextextended(j.command, 0) = hashtextextended(c.command, 0)
                  and hashtextextended(j.fair_key, 0) = hashtextextended(k.key, 0)
                  and j.queue = p_queue
                  and j.command = c.command
                  and j.fair_key = k.key
                  and bugle.serves(p_served, j.command, j.steps, j.step)
                  and (j.order_key is not null or j.limit_key is not null) is false
                  and (j.deadline is null or j.deadline > now())
                order by j.priority, j.id
                limit p_each)
              union all
              (
                select i.address, i.id, i.priority
                from (
                  select j.ctid as address, j.id, j.priority, j.order_key
                  from bugle.jobs_live j
                  where j.state = 'ready'
                    and j.fair_key is not null
                    and hashtextextended(j.queue, 0) = v_queue
                    and hashtextextended(j.command, 0) = hashtextextended(c.command, 0)
                    and hashtextextended(j.fair_key, 0) = hashtextextended(k.key, 0)
                    and j.queue = p_queue
                    and j.command = c.command
                    and j.fair_key = k.key
                    and bugle.serves(p_served, j.command, j.steps, j.step)
                    and (j.order_key is not null or j.limit_key is not null) = true
                    and (j.deadline is null or j.deadline > now())
                  order by j.priority, j.id
                  limit p_depth) i
                where i.order_key is null
                  or (
                    select case h.state
                        when 'ready' then h.id = i.id
                        when 'running' then false
                        else (h.id > i.id or not p_blocks) and i.id = (
                          select r.id
                          from bugle.jobs_live r
                          where hashtextextended(r.queue, 0) = v_queue
                            and hashtextextended(r.order_key, 0) = hashtextextended(i.order_key, 0)
                            and r.queue = p_queue
                            and r.order_key = i.order_key
                            and (r.state not in ('scheduled', 'waiting') or r.first_started_at is not null)
                            and case r.state when 'running' then 0 when 'ready' then 2 else 1 end = 2
                          order by r.id
                          limit 1)
                      end
                    from bugle.jobs_live h
                    where hashtextextended(h.queue, 0) = v_queue
                      and hashtextextended(h.order_key, 0) = hashtextextended(i.order_key, 0)
                      and h.queue = p_queue
                      and h.order_key = i.order_key
                      and (h.state not in ('scheduled', 'waiting') or h.first_started_at is not null)
                    order by case h.state when 'running' then 0 when 'ready' then 2 else 1 end, h.id
                    limit 1)
                limit p_each)) m) w
      union all
      select l.address, k.place, l.round
      from unnest(p_keys) with ordinality k (key, place)
        cross join lateral unnest((bugle.next_in_line(p_queue, p_commands, p_served, null, p_blocks, p_depth, p_each))[1:p_each]) with ordinality l (address, round)
      where k.key = '') t
    order by t.round, t.place);
end
$$;
comment on function bugle.next_by_turns is 'Jobs that may start, one of each fair key, then the next of each.';
