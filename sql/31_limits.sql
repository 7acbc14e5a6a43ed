-- limits: how much room there is in a queue, for a key, for a command. Used by claims of queues that have limits or
-- keys.
--
-- Claims of such a queue are serial: one at a time, under a row lock that is held until the commit, so that the next
-- one sees what was taken. All other queues are claimed concurrently. A queue is serial if it has a limit in
-- bugle.queues, or a ready job with an order_key, a limit_key or a fair_key, or if the worker serves a command with a
-- limit. A concurrent claim never takes a job with a key: the first such job may be committed between the check of the
-- queue and the scan.

-- The command of a chain is a name that a worker need not serve: every limit of a chain counts.
create or replace function bugle.limited_commands(p_commands text[]) returns text[]
language plpgsql stable
as $$
begin
  return array(
    select c.name
    from bugle.commands c
    where c.max_running is not null
      and (c.name = any (p_commands) or exists (select from bugle.chains n where n.command = c.name))
    order by c.name);
end
$$;
comment on function bugle.limited_commands is 'Commands with a limit that a worker with these executors may start.';

-- Subqueries with a limit: "exists" could be planned as one scan of all keyed jobs.
create or replace function bugle.serial_queues(p_queues text[], p_commands text[]) returns text[]
language plpgsql stable
as $$
declare
  v_by_command constant boolean := bugle.limited_commands(p_commands) <> '{}';
begin
  return array(
    select q.queue
    from unnest(p_queues) q (queue)
    where v_by_command
      or (select l.is_limited from bugle.queues l where l.name = q.queue)
      or (
        select true
        from bugle.fair_ready j
        where j.queue_hash = hashtextextended(q.queue, 0)
          and j.queue = q.queue
        limit 1)
      or (select true from bugle.keyed_ready j where j.queue = q.queue limit 1)
    order by q.queue);
end
$$;
comment on function bugle.serial_queues is
  'Which of these queues are claimed one claim at a time, because of limits or keys.';

-- When the first limit of a queue is committed, no claim that has not seen it may be under way. Claims lock an empty
-- table, the gate, which is cheap while no limit is being set. While one is, they lock the row of each queue in
-- bugle.queues instead, which fails for the queue that is getting a limit. The row is inserted if it does not exist.
create or replace function bugle.queues_at_gate(p_queues text[]) returns text[]
language plpgsql set lock_timeout = '200ms'
as $$
declare
  v_queue text;
  v_refused text[] := '{}';
begin
  begin
    lock table bugle.limit_gate in row exclusive mode nowait;
    return '{}';
  exception when lock_not_available then
    null;
  end;
  foreach v_queue in array p_queues loop
    begin
      insert into bugle.queues (name) values (v_queue) on conflict do nothing;
      perform from bugle.queues q where q.name = v_queue for share nowait;
    exception when lock_not_available then
      v_refused := v_refused || v_queue;
    end;
  end loop;
  return v_refused;
end
$$;
comment on function bugle.queues_at_gate is 'Which of these queues are getting their first limit at this moment.';

-- Locks are taken in the order of names: queues, then commands. No claim waits long: a worker that freezes in the
-- middle of a claim may hold a lock until the keeper ends its session, and everything else must be served in the
-- meantime. A queue or a command that could not be locked is left out of this claim; the last scan before the worker
-- becomes idle finds its work.
create or replace function bugle.lock_limits(
  p_queues text[], p_commands text[], out serial text[], out unavailable text[], out without text[])
language plpgsql
as $$
begin
  unavailable := bugle.queues_at_gate(p_queues);
  serial := bugle.serial_queues(p_queues, p_commands);
  if serial <> '{}' then
    unavailable := unavailable || array(
      select q.queue from unnest(serial) q (queue) where not bugle.lock_for_claim('queue', q.queue));
    without := array(
      select c.command
      from unnest(bugle.limited_commands(p_commands)) c (command)
      where not bugle.lock_for_claim('command', c.command));
  end if;
end
$$;
comment on function bugle.lock_limits is
  'Which queues this claim has locked; which queues and which commands it must leave out.';

-- The first claim that needs the row inserts it. Only a claim that has to wait pays for the subtransaction that a lock
-- timeout needs.
create or replace function bugle.lock_for_claim(p_kind text, p_name text) returns boolean
language plpgsql set lock_timeout = '200ms'
as $$
begin
  perform from bugle.claim_locks l where l.kind = p_kind and l.name = p_name for update skip locked;
  if found then
    return true;
  end if;
  begin
    insert into bugle.claim_locks (kind, name) values (p_kind, p_name) on conflict do nothing;
    perform from bugle.claim_locks l where l.kind = p_kind and l.name = p_name for update;
    return found;
  exception when lock_not_available then
    return false;
  end;
end
$$;
comment on function bugle.lock_for_claim is
  'Lock a queue or command for this claim, waiting at most 200 ms. Returns whether it is locked.';

-- Plain SQL, which the planner inlines. The key of the queue itself is ''.
create or replace function bugle.starts_of(p_queue text, p_key text)
returns table (address tid, started_at timestamptz, starts integer, total bigint)
language sql stable
as $$
  select s.ctid, s.started_at, s.starts, s.total
  from bugle.starts s
  where s.key_hash = hashtextextended(p_key, hashtextextended(p_queue, 0))
    and s.queue = p_queue
    and s.key = p_key
$$;
comment on function bugle.starts_of is 'The recent starts of a limit key, or of a queue as a whole.';

-- Starts are stored with running totals: the number within the period is the last total minus the total before the
-- first one in it. Plain SQL too; the time is a subquery because an index condition must not be volatile.
create or replace function bugle.starts_left(p_queue text, p_key text, p_max integer, p_period interval)
returns table (room integer, free_at timestamptz)
language sql stable
as $$
  select n.room, case when n.room <= 0 then (
      select s.started_at + p_period
      from bugle.starts_of(p_queue, p_key) s
      where s.started_at > (select clock_timestamp() - p_period)
        and s.total > l.total - p_max
      order by s.started_at
      limit 1) end
  from (select) key
    left join lateral (
      select s.total - s.starts as before
      from bugle.starts_of(p_queue, p_key) s
      where s.started_at > (select clock_timestamp() - p_period)
      order by s.started_at
      limit 1) f on true
    left join lateral (
      select s.total from bugle.starts_of(p_queue, p_key) s order by s.started_at desc limit 1) l on true
    cross join lateral (select (p_max - coalesce(l.total - f.before, 0))::integer as room) n
$$;
comment on function bugle.starts_left is
  'How many more may start now of a key, under a limit of starts in a period; if none, when the next may.';

create or replace function bugle.queue_room(
  p_limits bugle.queues, p_queue text, p_slots integer, out room integer, out running jsonb, out free_at timestamptz)
language plpgsql stable
as $$
declare
  v_running bigint;
begin
  room := p_slots;
  if p_limits.max_running is not null or p_limits.max_running_per_key is not null then
    select coalesce(sum(k.jobs), 0),
      coalesce(jsonb_object_agg(k.limit_key, k.jobs) filter (where k.limit_key is not null), '{}')
    into v_running, running
    from (
      select j.limit_key, count(*) as jobs
      from bugle.jobs_live j
      where bugle.is_running(j)
        and j.queue = p_queue
      group by j.limit_key) k;
    -- seed: running_jobs_are_not_counted
    room := least(room, p_limits.max_running - v_running);
  end if;
  if room > 0 and p_limits.max_starts is not null then
    select least(queue_room.room, s.room), s.free_at into room, free_at
    from bugle.starts_left(p_queue, '', p_limits.max_starts, p_limits.starts_period) s;
  end if;
  room := greatest(room, 0);
end
$$;
comment on function bugle.queue_room is
  'How many jobs of a queue may start now, at most slots; how many of each limit key run; when there is room again.';

-- Plain SQL too: called for each key.
create or replace function bugle.key_room(p_search bugle.start_search, p_key text)
returns table (room integer, free_at timestamptz)
language sql stable
as $$
  select
    -- seed: running_jobs_of_a_key_are_not_counted
    least(s.room, (p_search.limits).max_running_per_key - coalesce((p_search.running ->> p_key)::integer, 0)),
    s.free_at
  from (select) key
    left join lateral (
      select l.*
      from bugle.starts_left(p_search.queue, p_key, (p_search.limits).max_starts_per_key,
        (p_search.limits).starts_per_key_period) l
      where (p_search.limits).max_starts_per_key is not null) s on true
$$;
comment on function bugle.key_room is
  'How many jobs of a limit key may start now, and when a full one has room again. Null without a limit.';

create or replace function bugle.command_rooms(p_commands text[], p_without text[]) returns jsonb
language plpgsql stable
as $$
begin
  return (
    select jsonb_object_agg(c.name, case
        when c.name = any (p_without) then 0
        else greatest(c.max_running - (select count(*) from bugle.running_of(null, null, c.name)), 0)
      end)
    from bugle.commands c
    where c.name = any (bugle.limited_commands(p_commands)));
end
$$;
comment on function bugle.command_rooms is
  'How many jobs may start now of each of these commands that has a limit: none of those that this claim must leave '
  'out. Null if no command has a limit.';

-- Candidates in their order, cut to what their keys and commands have room for.
create or replace function bugle.cut_to_room(
  p_search bugle.start_search, p_addresses tid[], out addresses tid[], out free_at timestamptz)
language plpgsql stable set enable_hashjoin = on
as $$
begin
  with picked as materialized (
    select u.place, u.address, j.limit_key, j.command
    from unnest(p_addresses) with ordinality u (address, place)
      cross join lateral (
        select l.limit_key, l.command from bugle.jobs_live l where l.ctid = u.address limit 1) j
  ), rooms as materialized (
    select k.limit_key, r.room, r.free_at
    from (select distinct p.limit_key from picked p where p.limit_key is not null) k
      cross join lateral bugle.key_room(p_search, k.limit_key) r
  ), within_keys as (
    select n.*, row_number() over (partition by n.command order by n.place) as number_of_command
    from (
      select p.*, r.room, row_number() over (partition by p.limit_key order by p.place) as number_of_key
      from picked p
        left join rooms r on r.limit_key = p.limit_key) n
    where coalesce(n.number_of_key <= n.room, true)
  )
  select coalesce(array_agg(w.address order by w.place), '{}'), (select min(r.free_at) from rooms r)
  into addresses, free_at
  from within_keys w
  where coalesce(w.number_of_command <= (p_search.command_rooms ->> w.command)::integer, true);
end
$$;
comment on function bugle.cut_to_room is
  'Candidates, cut to what their limit keys and commands have room for; and when a full key has room again.';

-- Called after the moment that becomes started_at of these jobs, so what is noted here is not earlier, and the period
-- holds between those. With each start a few that have left the period are deleted.
create or replace function bugle.note_starts(p_queue text, p_addresses tid[]) returns void
language plpgsql
as $$
declare
  v_limits bugle.queues;
begin
  select q.* into v_limits from bugle.queues q where q.name = p_queue;
  -- seed: starts_are_not_noted
  if cardinality(p_addresses) = 0 or num_nonnulls(v_limits.max_starts, v_limits.max_starts_per_key) = 0 then
    return;
  end if;
  with noted as (
    insert into bugle.starts (queue, key, key_hash, started_at, starts, total)
    select p_queue, k.key, hashtextextended(k.key, hashtextextended(p_queue, 0)),
      greatest(clock_timestamp(), l.started_at + interval '1 microsecond'), k.starts, coalesce(l.total, 0) + k.starts
    from (
      select '' as key, cardinality(p_addresses) as starts
      where v_limits.max_starts is not null
      union all
      select j.limit_key, count(*)
      from unnest(p_addresses) a (address)
        cross join lateral (select l.limit_key from bugle.jobs_live l where l.ctid = a.address limit 1) j
      where v_limits.max_starts_per_key is not null
        and j.limit_key is not null
      group by j.limit_key) k
      left join lateral (
        select s.started_at, s.total
        from bugle.starts_of(p_queue, k.key) s
        order by s.started_at desc
        limit 1) l on true
    returning key
  )
  delete from bugle.starts s
  where s.ctid = any (array(
    select old.address
    from noted n
      cross join lateral (
        select o.address
        from bugle.starts_of(p_queue, n.key) o
        where o.started_at <= clock_timestamp()
            - case n.key when '' then v_limits.starts_period else v_limits.starts_per_key_period end
        order by o.started_at
        limit 20) old));
end
$$;
comment on function bugle.note_starts is 'Note that these jobs start, where starts are counted.';
