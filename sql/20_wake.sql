-- wake: when idle workers must be notified that there is work. Used by every path that makes a job ready.
--
-- The tempting form is to NOTIFY for every job. NOTIFY takes a lock of the whole cluster and holds it across the WAL
-- flush: that cut 4,698 commits/s to 443. So the bell is rung only when a worker is idle:
--   the idle worker that is to be woken for a queue (its sentinel) holds the bell, an advisory lock, exclusively;
--   an enqueuing transaction tries to take it shared, and keeps it until it ends. If it gets it, no worker is idle, and
--   none can become idle before the commit. If not, a worker is idle, or about to be: ring.
-- The invariant: bell free => a worker with free slots is scanning that queue, or none has free slots.

-- The last queue is remembered for the transaction (and dropped with a savepoint, like its lock), so a million rows
-- of one queue take one lock. The lock table is shared by every application on the server, so one transaction takes at
-- most 16 locks, then rings. The first queue of a transaction is not counted: most have one, and a setting costs as
-- much as a lock.
--
-- This and bugle.announce run with the search_path of the inserting role (10_enqueue.sql). Names in a RETURN are
-- resolved when the function is created; in plpgsql every name is qualified.
create or replace function bugle.bell_is_free(p_queue text) returns boolean
language sql
return p_queue is not distinct from current_setting('bugle.bell', true)
  or (
    (
      coalesce(current_setting('bugle.bell', true), '') = ''
      or (
        length(coalesce(current_setting('bugle.bells', true), '')) < 15
        and set_config('bugle.bells', coalesce(current_setting('bugle.bells', true), '') || '.', true) is not null))
    -- seed: enqueue_never_rings, bell_is_kept_after_commit
    and pg_try_advisory_xact_lock_shared(bugle.bell_key(p_queue))
    and set_config('bugle.bell', p_queue, true) is not null);
comment on function bugle.bell_is_free is
  'Whether this transaction may enqueue into a queue without a notification, because no worker is idle there.';

-- A full notification queue must never fail an enqueue: the slow poll finds the job. A transaction that will be
-- prepared (two-phase commit) cannot hold a notification: set bugle.silent = 'on' there.
create or replace function bugle.announce(p_channel text, p_message text) returns void
language plpgsql
as $$
begin
  if pg_catalog.pg_notification_queue_usage() operator(pg_catalog.<) 0.9
    and pg_catalog.current_setting('bugle.silent', true) operator(pg_catalog.=) 'on' is not true
    and p_channel operator(pg_catalog.<>) ''
    and pg_catalog.length(p_channel) operator(pg_catalog.<=) 60
    and pg_catalog.octet_length(p_message) operator(pg_catalog.<) 8000
  then
    perform pg_catalog.pg_notify(p_channel, p_message);
  end if;
end
$$;
comment on function bugle.announce is
  'NOTIFY, unless the notification queue is nearly full or the session set bugle.silent.';

create or replace function bugle.ring(p_queue text) returns void
language plpgsql
as $$
begin
  if not bugle.bell_is_free(p_queue) then
    perform bugle.announce(bugle.bell_channel(p_queue), p_queue);
  end if;
end
$$;
comment on function bugle.ring is
  'Wake the sentinel of a queue, if there is one. Every path that makes a job ready calls it.';

-- The keeper checks what is due once a second; only a job that is due sooner has to be announced.
create or replace function bugle.expect(p_at timestamptz) returns void
language plpgsql
as $$
begin
  if p_at < clock_timestamp() + interval '2 seconds' then
    perform bugle.announce('bugle_keeper', 'due');
  end if;
end
$$;
comment on function bugle.expect is 'Notify the keeper of a job that is due before its next check.';

-- A plain read, never SKIP LOCKED: that would miss a row that another claim has locked and then rolls back. With
-- cursors, one for each queue, as in a claim: only jobs behind them.
create or replace function bugle.queues_with_work(
  p_worker bigint, p_queues text[], p_after bugle.queue_position[] default null)
returns setof text
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  v_commands constant text[] := coalesce((
    select r.commands from bugle.registrations r where r.id = p_worker and r.paused_at is null), '{}');
  v_routes constant bigint[] := bugle.served_routes(v_commands);
  v_serial constant text[] := bugle.serial_queues(p_queues, v_commands);
begin
  return query
  select q.queue
  from (
    select u.queue, coalesce(u.priority, -2147483648) as priority, coalesce(u.run_at, '-infinity') as run_at,
      coalesce(u.id, 0) as id
    from unnest(p_queues, p_after) u (queue, priority, run_at, id)) q
  where case
      -- a job that a limit or a key keeps from starting cannot be claimed
      when q.queue = any (v_serial) then bugle.can_start(q.queue, v_routes, v_commands)
      else exists (
        select
        from unnest(v_routes) r (route)
          cross join lateral (
            select
            from bugle.plain_ready j
            where j.queue = q.queue
              and j.route = r.route
              and (j.priority, j.run_at, j.id) > (q.priority, q.run_at, q.id)
              and j.is_in_time
              and bugle.serves(v_commands, j.command, j.steps, j.step)
            limit 1) found)
    end
    and not exists (
      select from bugle.queues p where p.name = q.queue and p.paused_at is not null);
end
$$;
comment on function bugle.queues_with_work is
  'Which of these queues have a job that this worker could claim now, behind these cursors.';

-- What a claim from the start of the queue would find. For workers that claim from a cursor because a scan from the
-- start is expensive: they call this on another connection, where it delays nothing. No row for a queue whose claims do
-- not use a cursor.
create or replace function bugle.scan_ready(p_worker bigint, p_queue text, p_limit integer)
returns table (found integer, first bugle.queue_position)
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $$
declare
  v_limit constant integer := least(greatest(coalesce(p_limit, 0), 0), 10000);
  v_commands constant text[] := coalesce((
    select r.commands from bugle.registrations r where r.id = p_worker and r.paused_at is null), '{}');
begin
  if bugle.serial_queues(array[p_queue], v_commands) <> '{}' then
    return;
  end if;
  return query
  with ready as materialized (
    select f.priority, f.run_at, f.id
    from unnest(bugle.served_routes(v_commands)) r (route)
      cross join lateral (
        select j.priority, j.run_at, j.id
        from bugle.plain_ready j
        where j.queue = p_queue
          and j.route = r.route
          and j.is_in_time
          and bugle.serves(v_commands, j.command, j.steps, j.step)
        order by j.priority, j.run_at, j.id
        limit v_limit) f
    where not exists (
      select from bugle.queues q where q.name = p_queue and q.paused_at is not null)
    order by f.priority, f.run_at, f.id
    limit v_limit
  )
  select (select count(*) from ready)::integer, (
    select (r.priority, r.run_at, r.id)::bugle.queue_position
    from ready r
    order by r.priority, r.run_at, r.id
    limit 1);
end
$$;
comment on function bugle.scan_ready is
  'How many ready jobs of a queue this worker could claim, at most p_limit, and where the first of them is.';

-- A worker that found nothing becomes idle. It listens to the bells before it calls this. For each queue:
--   sentinel: it holds the bell now and will be rung for;
--   follower: another worker does, or polls; this one is called when there is more work than the other can take;
--   awake:    it polls this queue for all others, because the bell is taken: a transaction that has enqueued without a
--             notification is still open, or a foreign session holds the bell;
--   unplaced: none of these is possible, because a foreign session holds the lock of followers: try again later;
--   paused:   an operator paused this worker: it holds nothing, and is called when it is resumed.
-- has_work is a last scan, with a snapshot taken after the bell was granted. With cursors it covers only jobs behind
-- them; the worker scans before them itself (bugle.scan_ready).
--
-- The bell is tried, not waited for: a session that waits for a lock pins xmin for as long as it waits.
create or replace function bugle.arm(
  p_worker bigint, p_queues text[], p_after bugle.queue_position[] default null)
returns table (queue text, mode text, has_work boolean)
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_queue text;
  v_modes text[] := '{}';
  v_work text[];
begin
  if exists (
    select from bugle.registrations r where r.id = p_worker and r.paused_at is not null)
  then
    return query
    select q.queue, 'paused', false from unnest(p_queues) q (queue);
    return;
  end if;
  foreach v_queue in array coalesce(p_queues, '{}') loop
    v_modes := v_modes || case
      when pg_try_advisory_lock(bugle.bell_key(v_queue)) then 'sentinel'
      else bugle.stand_by(p_worker, v_queue) end;
  end loop;
  v_work := array(
    -- seed: arm_does_not_look_again
    select l.queue from bugle.queues_with_work(p_worker, p_queues, p_after) l (queue));
  perform bugle.hand_on(p_worker, u.queue)
  from unnest(p_queues, v_modes) u (queue, mode)
  where u.mode in ('sentinel', 'awake')
    and u.queue <> all (v_work);
  return query
  select u.queue, u.mode, u.queue = any (v_work)
  from unnest(p_queues, v_modes) u (queue, mode);
end
$$;
comment on function bugle.arm is
  'Become idle on these queues: take the bell of each, or follow the worker that has it, and scan once more, behind '
  'these cursors if they are given.';

-- A worker that cannot take the bell follows if another worker serves the queue: the sentinel, or the watcher, which
-- polls. This is checked again once this session is visible as a follower: the other worker may have left the queue
-- just before, without calling a follower. If there is none, this worker becomes the watcher. A watcher that becomes a
-- follower gives up its lease first, so that no other worker follows an idle one.
create or replace function bugle.stand_by(p_worker bigint, p_queue text) returns text
language plpgsql
as $$
begin
  if not bugle.has_sentinel(p_queue) and bugle.become_watcher(p_worker, p_queue) then
    return 'awake';
  elsif not pg_try_advisory_lock_shared(bugle.follower_key(p_queue)) then
    return 'unplaced';
  end if;
  perform bugle.stop_watching(p_queue, p_worker);
  if not bugle.has_sentinel(p_queue) and bugle.become_watcher(p_worker, p_queue) then
    perform pg_advisory_unlock_shared(bugle.follower_key(p_queue));
    return 'awake';
  end if;
  return 'follower';
end
$$;
comment on function bugle.stand_by is
  'The mode of a worker on a queue whose bell is taken: follow, or poll for all.';

-- A shared lock is compatible with those of enqueuing transactions, so getting one is the quick way to know that there
-- is no sentinel. Otherwise the holder must be a registered worker: a foreign session, or the backend of a half-open
-- connection, would be followed forever.
create or replace function bugle.has_sentinel(p_queue text) returns boolean
language plpgsql
as $$
begin
  if pg_try_advisory_lock_shared(bugle.bell_key(p_queue)) then
    perform pg_advisory_unlock_shared(bugle.bell_key(p_queue));
    return false;
  end if;
  return exists (
    select
    from bugle.advisory_locks() l
      join bugle.registrations r on r.backend_pid = l.pid
    where l.key = bugle.bell_key(p_queue)
      and l.is_exclusive
      and bugle.is_active(r));
end
$$;
comment on function bugle.has_sentinel is 'Whether an idle worker is rung for a queue.';

-- One of the idle workers polls while the bell is taken. Its lease is longer than the pause between two of its calls.
create or replace function bugle.become_watcher(p_worker bigint, p_queue text) returns boolean
language plpgsql
as $$
begin
  perform set_config('synchronous_commit', 'off', true);
  insert into bugle.watchers as w (queue, worker, until)
  select p_queue, r.id, clock_timestamp() + interval '2 seconds'
  from bugle.registrations r
  where r.id = p_worker
    -- all others rely on the watcher: a session can only make its own worker one
    and r.backend_pid = pg_backend_pid()
  on conflict (queue) do update
  set worker = excluded.worker,
    until = excluded.until
  where w.worker = excluded.worker
    or w.until not between clock_timestamp() and clock_timestamp() + interval '2 seconds'
    or not bugle.may_be_alive(w.worker);
  return found;
end
$$;
comment on function bugle.become_watcher is
  'Become, or stay, the worker that polls a queue. False if another one does.';

create or replace function bugle.stop_watching(p_queue text, p_worker bigint default null) returns void
language plpgsql
as $$
begin
  update bugle.watchers w
  set until = '-infinity'
  where w.queue = p_queue
    and w.until > '-infinity'
    and w.worker = coalesce(p_worker, w.worker);
  if found then
    perform set_config('synchronous_commit', 'off', true);
  end if;
end
$$;
comment on function bugle.stop_watching is
  'Give up the lease of the watcher of a queue, or of this worker if it is the watcher.';

create or replace function bugle.followers(p_queue text) returns setof bugle.registrations
language plpgsql
as $$
begin
  return query
  select r.*
  from bugle.advisory_locks() l
    join bugle.registrations r on r.backend_pid = l.pid
  where l.key = bugle.follower_key(p_queue)
    and not l.is_exclusive
    and l.pid <> pg_backend_pid()
    and bugle.is_active(r);
end
$$;
comment on function bugle.followers is 'The active workers that follow in a queue: they can be called to scan it.';

-- A worker that is full, or leaves a queue, hands over to one follower: not to all of them, or fifty idle workers would
-- wake for one job. It gives up being the watcher before it searches for followers: see bugle.stand_by.
create or replace function bugle.pass_on(p_queue text) returns void
language plpgsql
as $$
declare
  v_worker bigint;
begin
  perform bugle.stop_watching(p_queue);
  -- granted: there are no followers; the usual case under load, and far cheaper than reading pg_locks
  if pg_try_advisory_xact_lock(bugle.follower_key(p_queue)) then
    return;
  end if;
  select f.id into v_worker from bugle.followers(p_queue) f order by random() limit 1;
  if v_worker is not null then
    perform bugle.announce(bugle.worker_channel(v_worker), 'scan ' || p_queue);
  end if;
end
$$;
comment on function bugle.pass_on is 'Call one follower of a queue to scan it.';

-- The sentinel or watcher may not serve the commands of the jobs that wait: while a deployment is rolled out, the fleet
-- is mixed. Before it becomes idle it calls one follower of each other kind that could start something.
create or replace function bugle.hand_on(p_worker bigint, p_queue text) returns void
language plpgsql
as $$
declare
  v_commands constant text[] := (select r.commands from bugle.registrations r where r.id = p_worker);
begin
  -- a fleet whose workers all serve the same commands pays for this query, and no more
  if not exists (
      select
      from bugle.registrations r
      where bugle.is_active(r)
        and p_queue = any (r.queues)
        and not r.commands <@ v_commands)
    or pg_try_advisory_xact_lock(bugle.follower_key(p_queue))
  then
    return;
  end if;
  perform bugle.announce(bugle.worker_channel(k.id), 'scan ' || p_queue)
  from (
    select distinct on (f.commands) f.id
    from bugle.followers(p_queue) f
    where not f.commands <@ v_commands
    order by f.commands, random()
    limit 8) k
  where exists (select from bugle.queues_with_work(k.id, array[p_queue]));
end
$$;
comment on function bugle.hand_on is 'Call followers that serve what a worker does not, if there is work for them.';

-- The caller knows what it holds on each queue: unlocking more would raise a warning.
create or replace function bugle.disarm(p_queue text, p_mode text) returns void
language plpgsql
as $$
begin
  if p_mode = 'sentinel' then
    perform pg_advisory_unlock(bugle.bell_key(p_queue));
  elsif p_mode = 'follower' then
    perform pg_advisory_unlock_shared(bugle.follower_key(p_queue));
  end if;
end
$$;
comment on function bugle.disarm is 'Wake up on a queue: give up its bell, or the lock of a follower.';

-- A worker that stops claiming gives up its bells before its running jobs have ended.
create or replace function bugle.stand_down(p_queues text[], p_modes text[]) returns void
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.disarm(u.queue, u.mode), bugle.pass_on(u.queue)
  from unnest(p_queues, p_modes) u (queue, mode);
end
$$;
comment on function bugle.stand_down is 'Leave queues: give up their bells and call another worker.';

-- Such a session makes workers poll and enqueuers notify, but can do no other harm. A transaction that has enqueued
-- holds a bell too; it is listed once it has been open for a minute.
create or replace function bugle.foreign_locks()
returns table (pid integer, login name, program text, lock text, queue text, since timestamptz)
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return query
  with keys as (
    select k.*
    from (
      select distinct q.queue
      from bugle.registrations r
        cross join lateral unnest(r.queues) q (queue)
      where r.stopped_at is null) q
      cross join lateral (
        values ('bell', q.queue, bugle.bell_key(q.queue)), ('follower', q.queue, bugle.follower_key(q.queue)),
          ('subscription', q.queue, bugle.subscription_key(q.queue))) k (lock, queue, key)
    union all
    values ('subscription', null, bugle.subscription_key(null)), ('subscribers', null, bugle.subscribers_key()),
      ('silence', null, bugle.silence_key())
    union all
    select 'life', null, r.life_key from bugle.registrations r where r.stopped_at is null
  )
  select a.pid, a.usename, a.application_name, k.lock, k.queue, coalesce(a.xact_start, a.state_change)
  from bugle.advisory_locks() l
    join keys k on k.key = l.key
    join pg_stat_activity a on a.pid = l.pid
  where not exists (
      select from bugle.registrations r where r.backend_pid = l.pid and bugle.is_active(r))
    -- a session that subscribed to events holds these two, shared
    and (k.lock not in ('subscription', 'subscribers') or l.is_exclusive)
    and (a.state = 'idle' or a.xact_start < clock_timestamp() - interval '1 minute')
  order by a.pid, k.lock, k.queue;
end
$$;
comment on function bugle.foreign_locks is
  'Sessions other than workers that hold advisory locks of Bugle, and so slow it down.';
