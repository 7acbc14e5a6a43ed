-- limits: how much room there is in a queue, for a key, for a command. Used by claims of queues that have limits or keys.
--
-- Such a queue is claimed exactly: one claim at a time, under a row lock that it keeps until it commits, so that the next one
-- sees what it took. All others are claimed as ever, side by side. What makes a queue exact:
--   a limit in bugle.queues; a ready job with an order_key, a limit_key or a fair_key; a limit of a command the worker serves.
-- A claim of the ordinary kind never takes a job with a key: the first such job may be committed between its look at the queue
-- and its look at the jobs.

-- The subqueries have a limit and not the form of "exists": that could be planned as one scan of all keyed jobs.
create or replace function bugle.exact_queues(p_queues text[], p_commands text[]) returns text[]
language plpgsql stable
as $$
declare
  v_by_command constant boolean := exists (
    select from bugle.commands t where t.max_running is not null and t.name = any (p_commands));
begin
  return array(
    select q.queue
    from unnest(p_queues) q (queue)
    where v_by_command
      or (select l.is_limited from bugle.queues l where l.name = q.queue)
      or (
        select true
        from bugle.jobs_live j
        where j.state = 'ready'
          and j.fair_key is not null
          and hashtextextended(j.queue, 0) = hashtextextended(q.queue, 0)
          and j.queue = q.queue
        limit 1)
      or (
        select true
        from bugle.jobs_live j
        where j.state = 'ready'
          and j.fair_key is null
          and (j.order_key is not null or j.limit_key is not null)
          and j.queue = q.queue
        limit 1)
    order by q.queue);
end
$$;
comment on function bugle.exact_queues is 'Which of these queues are claimed one claim at a time, because something is to be counted or kept in order.';

-- Which queues a claim must not touch because their first limit is being set: no claim that has not seen the limit may be
-- under way when it is committed. Claims pass a gate, a lock on an empty table, which costs next to nothing while no limit is
-- being set. While one is, they lock the row of each queue in bugle.queues instead, which the one that is getting a limit does
-- not allow. The row is made if there is none: its first limit may be about to insert it.
create or replace function bugle.queues_at_gate(p_queues text[]) returns text[]
language plpgsql
as $$
declare
  v_queue text;
  v_refused text[] := '{}';
  v_timeout constant text := current_setting('lock_timeout');
begin
  begin
    lock table bugle.limit_gate in row exclusive mode nowait;
    return '{}';
  exception when lock_not_available then
    perform set_config('lock_timeout', '200ms', true);
  end;
  foreach v_queue in array p_queues loop
    begin
      insert into bugle.queues (name) values (v_queue) on conflict do nothing;
      perform from bugle.queues q where q.name = v_queue for share nowait;
    exception when lock_not_available then
      v_refused := v_refused || v_queue;
    end;
  end loop;
  perform set_config('lock_timeout', v_timeout, true);
  return v_refused;
end
$$;
comment on function bugle.queues_at_gate is 'Which of these queues are getting their first limit at this moment.';

-- Locks are taken in the order of their names: queues, then commands. Nobody waits long: claims are short, but one whose worker
-- was stopped in the middle may hold its lock until the keeper ends it, and then the other queues must be served. A queue that
-- could not be had is left out of this claim; the last look before sleep sees that there is work.
create or replace function bugle.lock_limits(p_queues text[], p_commands text[], out exact text[], out unavailable text[])
language plpgsql
as $$
declare
  v_queue text;
  v_limited text[];
begin
  unavailable := bugle.queues_at_gate(p_queues);
  exact := bugle.exact_queues(p_queues, p_commands);
  if exact = '{}' then
    return;
  end if;
  foreach v_queue in array exact loop
    if not bugle.lock_for_claim('queue', v_queue) then
      unavailable := unavailable || v_queue;
    end if;
  end loop;
  v_limited := array(
    select t.name from bugle.commands t where t.max_running is not null and t.name = any (p_commands) order by t.name);
  foreach v_queue in array v_limited loop
    -- a command's limit holds in all queues
    if not bugle.lock_for_claim('command', v_queue) then
      unavailable := p_queues;
    end if;
  end loop;
end
$$;
comment on function bugle.lock_limits is 'Which queues this claim must count in, under their locks, and which it must leave alone this time.';

-- The row is made by the first claim that needs it. Mostly the lock is free; only a claim that has to wait pays for a
-- subtransaction, which a time limit of the wait needs.
create or replace function bugle.lock_for_claim(p_kind text, p_name text) returns boolean
language plpgsql
as $$
declare
  v_timeout constant text := current_setting('lock_timeout');
  v_is_ours boolean;
begin
  perform from bugle.claim_locks l where l.kind = p_kind and l.name = p_name for update skip locked;
  if found then
    return true;
  end if;
  perform set_config('lock_timeout', '200ms', true);
  begin
    insert into bugle.claim_locks (kind, name) values (p_kind, p_name) on conflict do nothing;
    perform from bugle.claim_locks l where l.kind = p_kind and l.name = p_name for update;
    v_is_ours := found;
  exception when lock_not_available then
    v_is_ours := false;
  end;
  perform set_config('lock_timeout', v_timeout, true);
  return v_is_ours;
end
$$;
comment on function bugle.lock_for_claim is 'Lock a queue or command for this claim alone, waiting a moment if another has it. False if it could not be had.';

-- How many may start in a sliding period; if none, when the next may.
create or replace function bugle.starts_left(
  p_queue text, p_key text, p_max integer, p_period interval, out room integer, out free_at timestamptz)
language plpgsql stable
as $$
declare
  v_key constant bigint := hashtextextended(p_key, hashtextextended(p_queue, 0));
  v_since constant timestamptz := clock_timestamp() - p_period;
  v_before bigint;
  v_total bigint;
begin
  select s.total - s.starts into v_before
  from bugle.starts s
  where s.key_hash = v_key
    and s.queue = p_queue
    and s.key = p_key
    and s.started_at > v_since
  order by s.started_at
  limit 1;
  if not found then
    room := p_max;
    return;
  end if;
  select s.total into v_total
  from bugle.starts s
  where s.key_hash = v_key
    and s.queue = p_queue
    and s.key = p_key
  order by s.started_at desc
  limit 1;
  room := p_max - (v_total - v_before);
  if room <= 0 then
    select s.started_at + p_period into free_at
    from bugle.starts s
    where s.key_hash = v_key
      and s.queue = p_queue
      and s.key = p_key
      and s.started_at > v_since
      and s.total > v_total - p_max
    order by s.started_at
    limit 1;
  end if;
end
$$;
comment on function bugle.starts_left is 'How many more may start now under a limit of starts in a period; if none, when the next may.';

-- Everything that runs in a queue, by limit key: by the index of running jobs, of which there are never more than slots.
create or replace function bugle.running_by_key(p_queue text, out running bigint, out keys jsonb)
language plpgsql stable
as $$
begin
  select coalesce(sum(k.running), 0), coalesce(jsonb_object_agg(k.limit_key, k.running) filter (where k.limit_key is not null), '{}')
  into running, keys
  from (
    select j.limit_key, count(*) as running
    from bugle.jobs_live j
    where j.state like 'running'
      and j.worker is not null
      and j.queue = p_queue
    group by j.limit_key) k;
end
$$;
comment on function bugle.running_by_key is 'How many jobs of a queue run, in all and for each limit key.';

create or replace function bugle.queue_room(
  p_limits bugle.queues, p_queue text, p_slots integer, out room integer, out busy jsonb, out free_at timestamptz)
language plpgsql stable
as $$
declare
  v_running bigint;
  v_starts integer;
begin
  room := p_slots;
  if p_limits.max_running is not null or p_limits.max_running_per_key is not null then
    select r.running, r.keys into v_running, busy from bugle.running_by_key(p_queue) r;
    -- seed: running_jobs_are_not_counted
    room := least(room, p_limits.max_running - v_running);
  end if;
  if room > 0 and p_limits.max_starts is not null then
    select s.room, s.free_at into v_starts, free_at
    from bugle.starts_left(p_queue, '', p_limits.max_starts, p_limits.starts_period) s;
    room := least(room, v_starts);
  end if;
  room := greatest(room, 0);
end
$$;
comment on function bugle.queue_room is 'How many jobs of a queue may start now, at most so many; what runs for each key; and when there is room again.';

create or replace function bugle.key_rooms(p_limits bugle.queues, p_busy jsonb, p_keys text[])
returns table (key text, room integer, free_at timestamptz)
language plpgsql stable
as $$
declare
  v_queue constant bigint := hashtextextended(p_limits.name, 0);
  v_since constant timestamptz := clock_timestamp() - p_limits.starts_per_key_period;
begin
  if p_limits.max_starts_per_key is null then
    return query
    select k.key, p_limits.max_running_per_key - coalesce((p_busy ->> k.key)::integer, 0), null::timestamptz
    from unnest(p_keys) k (key);
    return;
  end if;
  -- bugle.starts_left for all keys at once; when a full one has room again is asked for those alone
  return query
  select r.key, r.room, case when r.room <= 0 and r.lacks_starts then (
      select s.free_at
      from bugle.starts_left(p_limits.name, r.key, p_limits.max_starts_per_key, p_limits.starts_per_key_period) s) end
  from (
    select k.key, n.room <= 0 as lacks_starts,
      -- seed: running_jobs_of_a_key_are_not_counted
      least(n.room, p_limits.max_running_per_key - coalesce((p_busy ->> k.key)::integer, 0))::integer as room
    from unnest(p_keys) k (key)
      left join lateral (
        select s.total - s.starts as before
        from bugle.starts s
        where s.key_hash = hashtextextended(k.key, v_queue)
          and s.queue = p_limits.name
          and s.key = k.key
          and s.started_at > v_since
        order by s.started_at
        limit 1) f on true
      left join lateral (
        select s.total
        from bugle.starts s
        where s.key_hash = hashtextextended(k.key, v_queue)
          and s.queue = p_limits.name
          and s.key = k.key
        order by s.started_at desc
        limit 1) l on true
      cross join lateral (
        select p_limits.max_starts_per_key - coalesce(l.total - f.before, 0) as room) n) r;
end
$$;
comment on function bugle.key_rooms is 'How many jobs of each of these limit keys may start now, and when a full one has room again.';

-- Null if none of them has a limit.
create or replace function bugle.command_rooms(p_commands text[]) returns jsonb
language plpgsql stable
as $$
begin
  return (
    select jsonb_object_agg(t.name, greatest(t.max_running - (
      select count(*)
      from bugle.jobs_live j
      where j.state like 'running'
        and j.worker is not null
        and j.command = t.name), 0))
    from bugle.commands t
    where t.max_running is not null
      and t.name = any (p_commands));
end
$$;
comment on function bugle.command_rooms is 'How many jobs may start now of each of these commands that has a limit.';

-- Called after the jobs were stamped: what is noted here is not earlier than their started_at, so the period holds between those.
-- p_keys has the limit key of each of them, or null.
create or replace function bugle.note_starts(p_queue text, p_keys text[]) returns void
language plpgsql
as $$
declare
  v_queue constant bigint := hashtextextended(p_queue, 0);
  v_limits bugle.queues;
  v_keys text[];
begin
  select q.* into v_limits from bugle.queues q where q.name = p_queue;
  -- seed: starts_are_not_noted
  if cardinality(p_keys) = 0 or num_nonnulls(v_limits.max_starts, v_limits.max_starts_per_key) = 0 then
    return;
  end if;
  with noted as (
    insert into bugle.starts (queue, key, started_at, starts, total)
    select p_queue, k.key, greatest(clock_timestamp(), l.started_at + interval '1 microsecond'), k.starts, coalesce(l.total, 0) + k.starts
    from (
      select '' as key, cardinality(p_keys) as starts
      where v_limits.max_starts is not null
      union all
      select j.limit_key, count(*)
      from unnest(p_keys) j (limit_key)
      where v_limits.max_starts_per_key is not null
        and j.limit_key is not null
      group by j.limit_key) k
      left join lateral (
        select s.started_at, s.total
        from bugle.starts s
        where s.key_hash = hashtextextended(k.key, v_queue)
          and s.queue = p_queue
          and s.key = k.key
        order by s.started_at desc
        limit 1) l on true
    returning key, starts, total
  )
  -- what has left the period is removed with every eighth start, eight times as much as comes
  select array_agg(n.key) into v_keys
  from noted n
  where n.total / 8 > (n.total - n.starts) / 8;
  if v_keys is null then
    return;
  end if;
  delete from bugle.starts s
  where s.ctid = any (array(
    select old.ctid
    from unnest(v_keys) k (key)
      cross join lateral (
        select o.ctid
        from bugle.starts o
        where o.key_hash = hashtextextended(k.key, v_queue)
          and o.queue = p_queue
          and o.key = k.key
          and o.started_at <= clock_timestamp() - case k.key when '' then v_limits.starts_period else v_limits.starts_per_key_period end
        order by o.started_at
        limit 160) old));
end
$$;
comment on function bugle.note_starts is 'Note that these jobs started, where starts are counted.';

-- Whether anything in this database may be waiting for another job to end. What every ending asks first.
create or replace function bugle.anything_held() returns boolean
language plpgsql stable
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  return exists (select from bugle.queues q where q.is_limited)
    or exists (select from bugle.commands t where t.max_running is not null)
    or exists (
      select
      from bugle.jobs_live j
      where j.order_key is not null
        and (j.state not in ('scheduled', 'waiting') or j.first_started_at is not null)
        -- says nothing, but leads into the index of ordered jobs
        and hashtextextended(j.queue, 0) >= -9223372036854775808);
end
$$;
comment on function bugle.anything_held is 'Whether there are limits, or jobs with an order key.';

-- Whatever stops running, or stops being in the way, may let others start: somebody must look.
create or replace function bugle.release(p_ids bigint[]) returns void
language plpgsql
as $$
begin
  if not bugle.anything_held() then
    return;
  end if;
  perform bugle.ring(q.queue)
  from (
    select distinct j.queue, j.order_key is not null as is_ordered
    from unnest(p_ids) i (id)
      cross join lateral (
        select l.queue, l.order_key from bugle.jobs_live l where l.id = i.id limit 1) j) q
  where q.is_ordered
    or exists (select from bugle.queues l where l.name = q.queue and l.is_limited);
  -- a command's limit holds in all queues
  if exists (select from bugle.commands t where t.max_running is not null) then
    perform bugle.ring(q.queue)
    from (
      select distinct h.queue
      from bugle.ready_heads() h
        join bugle.commands t on t.name = h.command
      where t.max_running is not null
        and h.command = any (array(
          select l.command from unnest(p_ids) i (id) join bugle.jobs_live l on l.id = i.id))) q;
  end if;
end
$$;
comment on function bugle.release is 'Ring for whoever was held back by these jobs. Every path out of running calls it, before the jobs leave the live table.';

-- Ring for queues whose period has let go of a start. The keeper's, at the time a claim has noted.
create or replace function bugle.release_due() returns integer
language plpgsql
as $$
declare
  v_queues text[];
begin
  with due as (
    update bugle.claim_positions t
    set recheck_at = null
    where t.queue = any (array(
      select d.queue from bugle.claim_positions d where d.recheck_at <= clock_timestamp() for update skip locked))
    returning t.queue
  )
  select array_agg(d.queue) into v_queues from due d;
  perform bugle.ring(q.queue) from unnest(v_queues) q (queue);
  return coalesce(cardinality(v_queues), 0);
end
$$;
comment on function bugle.release_due is 'Ring for queues in which something may start again because time has passed. Returns how many.';
