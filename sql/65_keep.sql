-- keep: the chores of the house, done by one worker among all. Called by every worker, as its heartbeat.
--
-- One keeper (an advisory lock on its second connection), one deputy that tries for the keeper's lock every second and
-- takes over the chores of a keeper that holds its lock but does not tick. Everyone else asks every ten seconds.

create or replace function bugle.heartbeat(
  p_worker bigint, p_nonce uuid, p_running bugle.held_job[], p_look boolean)
returns table (
  role text, again_seconds double precision, next_due_seconds double precision, fenced bugle.verdict[], has_work text[], upkeep boolean, troubles text[])
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_role text := 'none';
  v_troubles text[] := '{}';
  v_upkeep boolean := false;
begin
  perform bugle.check_worker(p_worker, p_nonce);
  perform set_config('synchronous_commit', 'off', true);
  update bugle.registrations r
  set seen_at = clock_timestamp(),
    running = cardinality(p_running),
    -- Back from a freeze: what it held is gone already, it is told so below. Only the session that proves its life can
    -- tell that it is back; this one may have outlived it.
    lost_at = case
      when r.backend_pid = pg_backend_pid() or not pg_try_advisory_xact_lock_shared(r.life_key) then null
      else r.lost_at end
  where r.id = p_worker
    and (r.lost_at is not null or r.running <> cardinality(p_running) or r.seen_at < clock_timestamp() - interval '4 seconds');

  if bugle.hold_once(bugle.keeper_key()) then
    v_role := 'keeper';
    perform pg_advisory_unlock(bugle.deputy_key()) where bugle.holds(bugle.deputy_key());
  elsif bugle.hold_once(bugle.deputy_key()) then
    v_role := 'deputy';
  end if;
  if v_role = 'keeper' or (
    v_role = 'deputy' and (select k.ticked_at < clock_timestamp() - interval '5 seconds' from bugle.keeping k))
  then
    select c.troubles, c.upkeep into v_troubles, v_upkeep from bugle.do_chores(p_worker, p_look) c;
  end if;

  return query
  select v_role,
    case v_role when 'none' then 10 else least(1, bugle.next_rescue_seconds()) end::double precision,
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
revoke execute on function bugle.heartbeat from public;

create or replace function bugle.holds(p_key bigint) returns boolean
language sql
as $$
  select exists (
    select
    from pg_locks l
    where l.locktype = 'advisory'
      and l.pid = pg_backend_pid()
      and l.objsubid = 1
      and l.granted
      and l.classid = (p_key >> 32 & 4294967295)::oid
      and l.objid = (p_key & 4294967295)::oid)
$$;
comment on function bugle.holds is 'Whether this session holds an advisory lock.';

-- Session locks count how often they were taken; taken once a second they would never be let go of again.
create or replace function bugle.hold_once(p_key bigint) returns boolean
language plpgsql
as $$
begin
  return bugle.holds(p_key) or pg_try_advisory_lock(p_key);
end
$$;
comment on function bugle.hold_once is 'Take an advisory lock for the session, or keep it if it is held already.';

-- One chore's failure must not stop the others: it is reported to the worker, which logs it.
create or replace function bugle.do_chores(p_worker bigint, p_look boolean)
returns table (troubles text[], upkeep boolean)
language plpgsql
as $$
declare
  v_troubles text[] := '{}';
  v_upkeep boolean;
begin
  update bugle.keeping k
  set watching_since = case
      when k.keeper is distinct from p_worker or k.ticked_at < clock_timestamp() - interval '5 seconds' then clock_timestamp()
      else k.watching_since end,
    keeper = p_worker,
    ticked_at = clock_timestamp(),
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
comment on function bugle.do_chores is 'Rescue, expire, fire schedules, promote, watch the bells. Returns what went wrong, and whether history needs upkeep.';
revoke execute on function bugle.do_chores from public;

-- A sentinel that is frozen holds the bell and hears nothing. If a job has been ready for a second although somebody
-- follows, call a follower. Correctness never depends on this; it bounds the wait.
create or replace function bugle.watch_bells() returns void
language plpgsql
as $$
begin
  perform bugle.pass_on(w.queue)
  from (
    select distinct w.queue
    from bugle.ready_heads() w
    where w.updated_at < clock_timestamp() - interval '1 second') w;
end
$$;
comment on function bugle.watch_bells is 'Call a follower of each queue whose first job has been ready for more than a second.';
revoke execute on function bugle.watch_bells from public;

-- The first ready job of each queue and command. Hops through the claim index from one pair to the next, so it costs as
-- much as there are pairs, with ten jobs or ten million.
create or replace function bugle.ready_heads() returns table (queue text, command text, id bigint, updated_at timestamptz)
language sql stable
security definer
set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
  with recursive head (queue, command, id, updated_at) as (
    (
      select j.queue, j.command, j.id, j.updated_at
      from bugle.jobs_live j
      where j.state = 'ready'
      order by j.queue, j.command, j.priority, j.id
      limit 1)
    union all
    select n.queue, n.command, n.id, n.updated_at
    from head h
      cross join lateral (
        select j.queue, j.command, j.id, j.updated_at
        from bugle.jobs_live j
        where j.state = 'ready'
          and (j.queue, j.command) > (h.queue, h.command)
        order by j.queue, j.command, j.priority, j.id
        limit 1) n
  )
  select h.queue, h.command, h.id, h.updated_at from head h
$$;
comment on function bugle.ready_heads is 'The first ready job of each queue and command.';
revoke execute on function bugle.ready_heads from public;
