-- keep: the chores of the house, done by one worker among all. Called by every worker, as its heartbeat.
--
-- One keeper does the chores with each of its heartbeats, once a second; one deputy watches it as often, and takes its post
-- as soon as the keeper's session is gone or it has not ticked for five seconds. All other workers ask less often whether a
-- post is vacant. Who holds a post is decided under the row lock of bugle.keeping, which only this schema can take.

create or replace function bugle.heartbeat(
  p_worker bigint, p_nonce uuid, p_running bugle.held_job[], p_look boolean)
returns table (
  role text, again_seconds double precision, next_due_seconds double precision, fenced bugle.verdict[], has_work text[], upkeep boolean, troubles text[])
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_role text;
  v_may_tick boolean;
  v_troubles text[] := '{}';
  v_upkeep boolean := false;
  -- several beats in a lease: one that comes late must not make its worker a frozen one
  v_beat constant interval := (select s.lease / 3 from bugle.settings s);
begin
  perform bugle.check_worker(p_worker, p_nonce);
  perform set_config('synchronous_commit', 'off', true);
  update bugle.registrations r
  set seen_at = clock_timestamp(),
    running = cardinality(p_running),
    -- Back from a freeze: what it held is gone already, it is told so below. Only the session that proves its life can
    -- tell that it is back; this one may have outlived it.
    lost_at = case
      when r.lost_at is null or r.backend_pid = pg_backend_pid() or bugle.holds(r.life_key, r.backend_pid) then null
      else r.lost_at end
  where r.id = p_worker
    and (r.lost_at is not null or r.running <> cardinality(p_running) or r.seen_at > clock_timestamp()
      or r.seen_at < clock_timestamp() - least(interval '4 seconds', v_beat / 2));

  select t.role, t.may_tick into v_role, v_may_tick from bugle.take_role(p_worker) t;
  if v_may_tick then
    select c.troubles, c.upkeep into v_troubles, v_upkeep from bugle.run_maintenance(p_worker, p_look) c;
  end if;

  return query
  select v_role,
    least(extract(epoch from v_beat), case v_role when 'none' then bugle.ask_again_seconds() else least(1, bugle.next_rescue_seconds()) end)::double precision,
    case v_role when 'none' then null else bugle.next_due_seconds() end,
    array(select v from bugle.not_held(p_worker, p_running) v),
    case when p_look then array(
      select l.queue
      from bugle.look(p_worker, (select r.queues from bugle.registrations r where r.id = p_worker)) l (queue)) else '{}' end,
    v_upkeep,
    v_troubles;
end
$$;
comment on function bugle.heartbeat is 'A worker''s sign of life; the keeper does the chores in it. Returns what the worker should know.';

-- Four times a second somebody of the whole fleet asks, and each of it at least every ten seconds: when the keeper and its
-- deputy are killed together, their posts are taken at once, and nobody's jobs wait for it.
create or replace function bugle.ask_again_seconds() returns double precision
language plpgsql stable
as $$
begin
  return (
    select least(greatest(count(*) / 4.0, 1), 10)
    from bugle.registrations r
    where r.stopped_at is null
      and r.lost_at is null);
end
$$;
comment on function bugle.ask_again_seconds is 'After how many seconds a worker without a post asks for one again.';

-- Whether the session that proves a worker's life is still there. The lock is tried, which is far cheaper than reading
-- pg_locks. Granted: its session is gone. Refused: the worker holds it, or a stranger who took the key of a dead worker; callers
-- therefore ask for a recent sign of life as well.
create or replace function bugle.may_be_alive(p_worker bigint) returns boolean
language plpgsql
as $$
begin
  return exists (
    select
    from bugle.registrations r
    where r.id = p_worker
      and r.stopped_at is null
      and r.lost_at is null
      and not pg_try_advisory_xact_lock_shared(r.life_key));
end
$$;
comment on function bugle.may_be_alive is 'Whether a worker is registered and its proof of life is held.';

-- A time ahead of the clock is as suspect as an old one: the clock was set back.
create or replace function bugle.is_recent(p_at timestamptz, p_window interval) returns boolean
language sql
return p_at between clock_timestamp() - p_window and clock_timestamp() + p_window;
comment on function bugle.is_recent is 'Whether a time is close to now.';

-- Decided by reading, then once more under the row lock, which is never waited for: a keeper that cannot have it leaves its
-- chores to the next heartbeat. The lock is held until the heartbeat commits, so no two workers do the chores at once.
create or replace function bugle.take_role(p_worker bigint, out role text, out may_tick boolean)
language plpgsql
as $$
declare
  v_seen bugle.keeping;
  v_locked bugle.keeping;
begin
  may_tick := false;
  select k.* into v_seen from bugle.keeping k;
  role := bugle.role_for(p_worker, v_seen);
  if role = 'none' or (role = 'deputy' and v_seen.deputy = p_worker) then
    return;
  end if;
  select k.* into v_locked from bugle.keeping k for update skip locked;
  if not found then
    role := case p_worker when v_seen.keeper then 'keeper' when v_seen.deputy then 'deputy' else 'none' end;
    return;
  end if;
  role := bugle.role_for(p_worker, v_locked);
  if role = 'deputy' then
    update bugle.keeping k set deputy = p_worker;
  elsif role = 'keeper' then
    update bugle.keeping k
    set keeper = p_worker,
      deputy = nullif(k.deputy, p_worker),
      watching_since = case
        when k.keeper = p_worker and bugle.is_recent(k.ticked_at, interval '5 seconds') then k.watching_since
        else clock_timestamp() end;
    may_tick := true;
  end if;
end
$$;
comment on function bugle.take_role is 'Which post a worker has: keeper, deputy or none; a vacant one is taken. The keeper may tick unless another session holds the row.';

create or replace function bugle.role_for(p_worker bigint, p_keeping bugle.keeping) returns text
language plpgsql
as $$
begin
  if p_keeping.keeper = p_worker then
    return 'keeper';
  elsif not bugle.is_recent(p_keeping.ticked_at, interval '5 seconds') or not bugle.may_be_alive(p_keeping.keeper) then
    return 'keeper';
  elsif p_keeping.deputy = p_worker then
    return 'deputy';
  elsif not exists (
      select from bugle.registrations r where r.id = p_keeping.deputy and bugle.is_recent(r.seen_at, interval '15 seconds'))
    or not bugle.may_be_alive(p_keeping.deputy)
  then
    return 'deputy';
  end if;
  return 'none';
end
$$;
comment on function bugle.role_for is 'The post a worker has, or may take because its holder is gone.';

-- One chore's failure must not stop the others: it is reported to the worker, which logs it.
create or replace function bugle.run_maintenance(p_worker bigint, p_look boolean)
returns table (troubles text[], upkeep boolean)
language plpgsql
as $$
declare
  v_troubles text[] := '{}';
  v_upkeep boolean;
  v_step interval;
begin
  begin
    v_step := bugle.follow_clock();
    if v_step is not null then
      v_troubles := v_troubles || format('clock: the clock of the database was set back by %s', v_step);
    end if;
  exception when others then
    v_troubles := v_troubles || format('clock: %s', sqlerrm);
  end;
  update bugle.keeping k
  set ticked_at = clock_timestamp(),
    upkeep_at = case when k.upkeep_at < now() - interval '1 minute' then now() else k.upkeep_at end
  returning k.upkeep_at = now() into v_upkeep;
  begin
    perform bugle.note_lost(p_worker);
    perform bugle.rescue();
  exception when others then
    v_troubles := v_troubles || format('rescue: %s', sqlerrm);
  end;
  begin
    perform bugle.expire();
  exception when others then
    v_troubles := v_troubles || format('expire: %s', sqlerrm);
  end;
  begin
    perform bugle.fire_schedules();
  exception when others then
    v_troubles := v_troubles || format('fire schedules: %s', sqlerrm);
  end;
  begin
    perform bugle.promote();
  exception when others then
    v_troubles := v_troubles || format('promote: %s', sqlerrm);
  end;
  if p_look then
    begin
      perform bugle.watch_bells();
    exception when others then
      v_troubles := v_troubles || format('watch bells: %s', sqlerrm);
    end;
  end if;
  return query
  select v_troubles, v_upkeep;
end
$$;
comment on function bugle.run_maintenance is 'Follow the clock, rescue, expire, fire schedules, promote, watch the bells. Returns what went wrong, and whether history needs upkeep.';

-- A sentinel that is frozen holds the bell and hears nothing, and a worker that polls a queue may be frozen too. If there is
-- work although workers follow, one of each queue is called. Correctness never depends on this; it bounds the wait. Only
-- queues with a follower are looked into, at most 50 in a beat: what nobody serves costs nothing, however many names it has.
create or replace function bugle.watch_bells() returns void
language plpgsql
as $$
begin
  perform bugle.announce(bugle.worker_channel(f.worker), 'look ' || f.queue)
  from (
    select d.queue, d.worker
    from (
      select distinct on (q.queue) q.queue, r.id as worker
      from bugle.registrations r
        cross join lateral unnest(r.queues) q (queue)
        join bugle.advisory_locks() l on l.pid = r.backend_pid and l.key = bugle.follower_key(q.queue)
      where r.stopped_at is null
        and r.lost_at is null
        and r.paused_at is null
      order by q.queue, random()) d
    order by random()
    limit 50) f
  where exists (select from bugle.look(f.worker, array[f.queue]));
end
$$;
comment on function bugle.watch_bells is 'Call a follower of each queue in which there is work for it.';

-- The first ready job of each queue and command, and the first of those that have keys. Hops through the indexes of ready jobs
-- from one pair to the next, so it costs as much as there are pairs, with ten jobs or ten million.
create or replace function bugle.ready_heads() returns table (queue text, command text, id bigint, updated_at timestamptz)
language sql stable security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
  with recursive plain (queue, command, id, updated_at) as (
    (
      select j.queue, j.command, j.id, j.updated_at
      from bugle.jobs_live j
      where j.state = 'ready'
        and j.fair_key is null
        and j.order_key is null
        and j.limit_key is null
      order by j.queue, j.command, j.priority, j.id
      limit 1)
    union all
    select n.queue, n.command, n.id, n.updated_at
    from plain h
      cross join lateral (
        select j.queue, j.command, j.id, j.updated_at
        from bugle.jobs_live j
        where j.state = 'ready'
          and j.fair_key is null
          and j.order_key is null
          and j.limit_key is null
          and (j.queue, j.command) > (h.queue, h.command)
        order by j.queue, j.command, j.priority, j.id
        limit 1) n
  ), keyed (queue, command, id, updated_at) as (
    (
      select j.queue, j.command, j.id, j.updated_at
      from bugle.jobs_live j
      where j.state = 'ready'
        and j.fair_key is null
        and (j.order_key is not null or j.limit_key is not null)
      order by j.queue, j.command, j.priority, j.id
      limit 1)
    union all
    select n.queue, n.command, n.id, n.updated_at
    from keyed h
      cross join lateral (
        select j.queue, j.command, j.id, j.updated_at
        from bugle.jobs_live j
        where j.state = 'ready'
          and j.fair_key is null
          and (j.order_key is not null or j.limit_key is not null)
          and (j.queue, j.command) > (h.queue, h.command)
        order by j.queue, j.command, j.priority, j.id
        limit 1) n
  ), fair (queue, command, id, updated_at) as (
    (
      select j.queue, j.command, j.id, j.updated_at
      from bugle.jobs_live j
      where j.state = 'ready'
        and j.fair_key is not null
      order by hashtextextended(j.queue, 0), hashtextextended(j.command, 0), hashtextextended(j.fair_key, 0),
        (j.order_key is not null or j.limit_key is not null), j.priority, j.id
      limit 1)
    union all
    select n.queue, n.command, n.id, n.updated_at
    from fair h
      cross join lateral (
        select j.queue, j.command, j.id, j.updated_at
        from bugle.jobs_live j
        where j.state = 'ready'
          and j.fair_key is not null
          and (hashtextextended(j.queue, 0), hashtextextended(j.command, 0)) > (hashtextextended(h.queue, 0), hashtextextended(h.command, 0))
        order by hashtextextended(j.queue, 0), hashtextextended(j.command, 0), hashtextextended(j.fair_key, 0),
          (j.order_key is not null or j.limit_key is not null), j.priority, j.id
        limit 1) n
  )
  select distinct on (a.queue, a.command) a.queue, a.command, a.id, a.updated_at
  from (
    select p.* from plain p
    union all
    select k.* from keyed k
    union all
    select f.* from fair f) a
  order by a.queue, a.command, a.id
$$;
comment on function bugle.ready_heads is 'A first ready job of each queue and command.';

-- The same of plain jobs, and the first ready chain of each queue and end, by the index of chains.
create or replace function bugle.ready_needs()
returns table (queue text, command text, id bigint, updated_at timestamptz, steps text[])
language sql stable security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
as $$
  with recursive chain (queue, key, command, id, updated_at, steps) as (
    (
      select j.queue, hash_array_extended(j.steps[coalesce(j.step, 0) + 1:], 0), j.command, j.id, j.updated_at,
        j.steps[coalesce(j.step, 0) + 1:]
      from bugle.jobs_live j
      where j.state = 'ready'
        and j.steps is not null
      order by j.queue, hash_array_extended(j.steps[coalesce(j.step, 0) + 1:], 0), j.priority, j.id
      limit 1)
    union all
    select n.*
    from chain h
      cross join lateral (
        select j.queue, hash_array_extended(j.steps[coalesce(j.step, 0) + 1:], 0), j.command, j.id, j.updated_at,
          j.steps[coalesce(j.step, 0) + 1:]
        from bugle.jobs_live j
        where j.state = 'ready'
          and j.steps is not null
          and (j.queue, hash_array_extended(j.steps[coalesce(j.step, 0) + 1:], 0)) > (h.queue, h.key)
        order by j.queue, hash_array_extended(j.steps[coalesce(j.step, 0) + 1:], 0), j.priority, j.id
        limit 1) n
  )
  select h.queue, h.command, h.id, h.updated_at, null::text[]
  from bugle.ready_heads() h
    cross join lateral (
      select from bugle.jobs_live j where j.id = h.id and j.steps is null limit 1) plain
  union all
  select c.queue, c.command, c.id, c.updated_at, c.steps from chain c
$$;
comment on function bugle.ready_needs is 'The first ready job of each queue and command, and of each queue and end of a chain, with the steps that are left.';
