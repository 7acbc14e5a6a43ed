-- keep: maintenance, done by one worker for all. Called by every worker, as its heartbeat.
--
-- The keeper runs maintenance with each of its heartbeats, once a second. The deputy watches it as often, and becomes
-- keeper as soon as the keeper's session is gone or it has not ticked for five seconds. All other workers ask less
-- often whether a role is vacant. Who has a role is decided under the row lock of bugle.keeping, which only this schema
-- can take.

create or replace function bugle.heartbeat(
  p_worker bigint, p_nonce uuid, p_running bugle.held_job[], p_scan boolean)
returns table (
  role text, again_seconds double precision, next_due_seconds double precision, fenced bugle.verdict[],
  has_work text[], upkeep boolean, troubles text[])
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_role text;
  v_may_tick boolean;
  v_troubles text[] := '{}';
  v_upkeep boolean := false;
  -- several beats in a lease: a worker whose beat comes late must not count as frozen
  v_beat constant interval := (select s.lease / 3 from bugle.settings s);
begin
  perform bugle.check_worker(p_worker, p_nonce);
  perform set_config('synchronous_commit', 'off', true);
  update bugle.registrations r
  set seen_at = clock_timestamp(),
    running = cardinality(p_running),
    -- Back from a freeze: it has lost its jobs, which are returned below as fenced. Only the session that holds the
    -- proof of life counts; this session may have outlived that one.
    lost_at = case
      when r.lost_at is null or r.backend_pid = pg_backend_pid() or bugle.holds(r.life_key, r.backend_pid) then null
      else r.lost_at end
  where r.id = p_worker
    and (r.lost_at is not null or r.running <> cardinality(p_running) or r.seen_at > clock_timestamp()
      or r.seen_at < clock_timestamp() - least(interval '4 seconds', v_beat / 2));

  select t.role, t.may_tick into v_role, v_may_tick from bugle.take_role(p_worker) t;
  if v_may_tick then
    select c.troubles, c.upkeep into v_troubles, v_upkeep from bugle.run_maintenance(p_worker, p_scan) c;
  end if;

  return query
  select v_role,
    least(extract(epoch from v_beat), case v_role
      when 'none' then bugle.ask_again_seconds()
      else least(1, bugle.next_rescue_seconds()) end)::double precision,
    case v_role when 'none' then null else bugle.next_due_seconds() end,
    array(select v from bugle.not_held(p_worker, p_running) v),
    case when p_scan then array(
      select l.queue
      from bugle.queues_with_work(p_worker, (
        select r.queues from bugle.registrations r where r.id = p_worker)) l (queue)) else '{}' end,
    v_upkeep,
    v_troubles;
end
$$;
comment on function bugle.heartbeat is
  'A worker''s sign of life, in which the keeper runs maintenance. Returns what the worker should know.';

-- Called after a heartbeat, if something of it has changed since the last call: most workers never call it.
create or replace function bugle.note_condition(
  p_worker bigint, p_nonce uuid, p_short_of text, p_lacks_slots boolean, p_overdue bigint[])
returns void
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.check_worker(p_worker, p_nonce);
  perform set_config('synchronous_commit', 'off', true);
  update bugle.registrations r
  set short_of = left(p_short_of, 200),
    lacks_slots = coalesce(p_lacks_slots, false),
    overdue = coalesce(p_overdue[1:1000], '{}')
  where r.id = p_worker;
end
$$;
comment on function bugle.note_condition is
  'What keeps a worker from starting jobs, and which of its jobs run beyond their time limit. For bugle.explain.';

-- One worker of the fleet asks every quarter of a second, and each at least every ten seconds: when the keeper and the
-- deputy are killed together, their roles are taken at once.
create or replace function bugle.ask_again_seconds() returns double precision
language plpgsql stable
as $$
begin
  return (
    select least(greatest(count(*) / 4.0, 1), 10)
    from bugle.registrations r
    where bugle.is_active(r));
end
$$;
comment on function bugle.ask_again_seconds is 'After how many seconds a worker without a role asks for one again.';

-- The worker's proof of life is tried, which is far cheaper than reading pg_locks. Granted: its session is gone.
-- Refused: the worker holds it, or another login took the key of a dead worker; callers therefore also ask for a recent
-- sign of life.
create or replace function bugle.may_be_alive(p_worker bigint) returns boolean
language plpgsql
as $$
begin
  return exists (
    select
    from bugle.registrations r
    where r.id = p_worker
      and bugle.is_active(r)
      and not pg_try_advisory_xact_lock_shared(r.life_key));
end
$$;
comment on function bugle.may_be_alive is 'Whether a worker is registered and its proof of life is held.';

-- A time in the future is as suspect as an old one: the clock was set back.
create or replace function bugle.is_recent(p_at timestamptz, p_window interval) returns boolean
language sql
return p_at between clock_timestamp() - p_window and clock_timestamp() + p_window;
comment on function bugle.is_recent is 'Whether a time is close to now.';

-- Decided by reading, then once more under the row lock, which is never waited for: a keeper that cannot have it leaves
-- maintenance to its next heartbeat. The lock is held until the heartbeat commits, so no two workers run maintenance at
-- once.
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
comment on function bugle.take_role is 'Which role a worker has: keeper, deputy or none; a vacant one is taken. '
  'The keeper may tick unless another session holds the row.';

create or replace function bugle.role_for(p_worker bigint, p_keeping bugle.keeping) returns text
language plpgsql
as $$
begin
  if p_keeping.keeper = p_worker
    or not bugle.is_recent(p_keeping.ticked_at, interval '5 seconds')
    or not bugle.may_be_alive(p_keeping.keeper)
  then
    return 'keeper';
  elsif p_keeping.deputy = p_worker
    or not exists (
      select
      from bugle.registrations r
      where r.id = p_keeping.deputy
        and bugle.is_recent(r.seen_at, interval '15 seconds'))
    or not bugle.may_be_alive(p_keeping.deputy)
  then
    return 'deputy';
  end if;
  return 'none';
end
$$;
comment on function bugle.role_for is 'The role a worker has, or may take because its holder is gone.';

-- The failure of one task must not stop the others: it is reported to the worker, which logs it.
create or replace function bugle.run_maintenance(p_worker bigint, p_scan boolean)
returns table (troubles text[], upkeep boolean)
language plpgsql
as $$
declare
  v_task text;
  v_troubles text[] := '{}';
  v_upkeep boolean;
  v_step interval;
begin
  begin
    v_step := bugle.check_clock();
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
  foreach v_task in array '{rescue,expire,fire schedules,promote,check bells}'::text[] loop
    begin
      case v_task
        when 'rescue' then
          perform bugle.note_lost(p_worker);
          perform bugle.rescue();
        when 'expire' then
          perform bugle.expire();
        when 'fire schedules' then
          perform bugle.fire_schedules();
        when 'promote' then
          perform bugle.promote();
        when 'check bells' then
          if p_scan then
            perform bugle.check_bells();
          end if;
      end case;
    exception when others then
      v_troubles := v_troubles || format('%s: %s', v_task, sqlerrm);
    end;
  end loop;
  return query
  select v_troubles, v_upkeep;
end
$$;
comment on function bugle.run_maintenance is 'Follow the clock, rescue, expire, fire schedules, promote, watch the '
  'bells. Returns what went wrong, and whether history needs upkeep.';

-- A frozen sentinel holds the bell and does not react, and a watcher may be frozen too. If there is work although
-- workers follow, one follower of each queue is called. Correctness does not depend on this; it bounds the wait. Only
-- queues with a follower are scanned, at most 50 per heartbeat: queues that no worker serves cost nothing.
create or replace function bugle.check_bells() returns void
language plpgsql
as $$
begin
  perform bugle.announce(bugle.worker_channel(f.worker), 'scan ' || f.queue)
  from (
    select d.queue, d.worker
    from (
      select distinct on (q.queue) q.queue, r.id as worker
      from bugle.registrations r
        cross join lateral unnest(r.queues) q (queue)
        join bugle.advisory_locks() l on l.pid = r.backend_pid and l.key = bugle.follower_key(q.queue)
      where bugle.is_active(r)
        and r.paused_at is null
      order by q.queue, random()) d
    order by random()
    limit 50) f
  where exists (select from bugle.queues_with_work(f.worker, array[f.queue]));
end
$$;
comment on function bugle.check_bells is 'Call a follower of each queue in which there is work for it.';

-- Loose index scans, from one pair of queue and route to the next: the cost grows with the pairs, not with the jobs.
-- Each starts before the first pair: an empty name, the lowest hash. The tempting form, "select distinct on (queue,
-- route)", reads every ready job.
create or replace function bugle.ready_heads()
returns table (queue text, route bigint, command text, steps text[], id bigint, updated_at timestamptz)
language sql stable security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
as $$
  with recursive plain (queue, route, address) as (
    select '', -9223372036854775808, null::tid
    union all
    select n.*
    from plain h
      cross join lateral (
        select j.queue, j.route, j.address
        from bugle.plain_ready j
        where (j.queue, j.route) > (h.queue, h.route)
        order by j.queue, j.route, j.priority, j.run_at, j.id
        limit 1) n
  ), keyed (queue, route, address) as (
    select '', -9223372036854775808, null::tid
    union all
    select n.*
    from keyed h
      cross join lateral (
        select j.queue, j.route, j.address
        from bugle.keyed_ready j
        where (j.queue, j.route) > (h.queue, h.route)
        order by j.queue, j.route, j.priority, j.run_at, j.id
        limit 1) n
  ), fair (queue, route, address) as (
    select -9223372036854775808, -9223372036854775808, null::tid
    union all
    select n.*
    from fair h
      cross join lateral (
        select j.queue_hash, j.route, j.address
        from bugle.fair_ready j
        where (j.queue_hash, j.route) > (h.queue, h.route)
        order by j.queue_hash, j.route, j.fair_hash, j.has_other_key, j.priority, j.run_at, j.id
        limit 1) n
  )
  select distinct on (j.queue, j.route)
    j.queue, j.route, j.command, bugle.remaining(j.steps, j.step), j.id, j.updated_at
  from (
    select p.address from plain p
    union all
    select k.address from keyed k
    union all
    select f.address from fair f) a
    cross join lateral (
      select r.queue, r.route, r.command, r.steps, r.step, r.id, r.updated_at
      from bugle.ready r
      where r.address = a.address
      limit 1) j
  order by j.queue, j.route, j.id
$$;
comment on function bugle.ready_heads is
  'A first ready job of each queue and route, with the steps that are left if it is a chain.';
