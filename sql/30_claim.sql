-- claim: ready -> running. Called by workers, a batch at a time, sized by their free slots.

-- Rows are picked and locked first, then updated by their addresses. "update … from (select … limit n)" can become a
-- hash join over the whole table, and even exceed the limit; an array of addresses cannot.
--
-- Planner settings rule out plans that could go wrong: the table is empty one minute and has a million rows the next,
-- and a plan made for one must not be used for the other.
create or replace function bugle.claim(p_worker bigint, p_nonce uuid, p_requests bugle.queue_request[])
returns setof bugle.claimed_job
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_material = off set plan_cache_mode = force_generic_plan set jit = off
as $$
declare
  v_queues constant text[] := array(select r.queue from unnest(p_requests) r);
  v_commands text[];
  v_routes bigint[];
  v_locks record;
  v_request bugle.queue_request;
  v_is_serial boolean;
  v_addresses tid[];
  v_turns bigint[];
  v_defaults record;
  v_now timestamptz;
  v_largest integer;
begin
  select r.commands into v_commands
  from bugle.registrations r
  where r.id = p_worker
    and r.nonce = p_nonce
    and r.backend_pid = pg_backend_pid()
    and r.stopped_at is null
    -- the next rescue would take away what a lost worker claims
    and r.lost_at is null;
  if not found then
    perform bugle.refuse_claim(p_worker, p_nonce);
  end if;
  -- under repeatable read a limit of one let three run
  if current_setting('transaction_isolation') <> 'read committed' then
    perform bugle.refuse('JB012', format('jobs cannot be claimed under isolation level %s',
      current_setting('transaction_isolation')), 'Use read committed, outside of any larger transaction.');
  end if;
  -- A claim that is lost in a crash of the server leaves its jobs ready. (A SET clause of this function would be undone
  -- before the commit.)
  if not exists (select from bugle.queues q where q.name = any (v_queues) and q.synchronous_claims) then
    perform set_config('synchronous_commit', 'off', true);
  end if;
  v_routes := bugle.served_routes(v_commands);
  select l.* into v_locks from bugle.lock_limits(v_queues, v_commands) l;

  foreach v_request in array coalesce(p_requests, '{}') loop
    perform bugle.disarm(v_request.queue, v_request.mode);
    -- null would mean no limit
    continue when v_request.queue = any (v_locks.unavailable) or v_request.slots is null or v_request.slots < 1;
    v_request.slots := least(v_request.slots, 10000);
    v_is_serial := v_request.queue = any (v_locks.serial);
    if v_is_serial then
      select p.addresses, p.turns into v_addresses, v_turns
      from bugle.pick_serially(v_request, v_routes, v_commands, v_locks.without) p;
    else
      v_addresses := bugle.pick(v_request, v_routes, v_commands);
    end if;
    -- Checked after picking, with a newer snapshot: it sees everything that was committed before a picked job was
    -- enqueued. So no job that was enqueued after its queue or this worker was paused starts, and none that was
    -- enqueued after its command got a timeout runs without it.
    continue when exists (select from bugle.queues q where q.name = v_request.queue and q.paused_at is not null);
    if exists (select from bugle.registrations r where r.id = p_worker and r.paused_at is not null) then
      perform bugle.pass_on(v_request.queue);
      continue;
    end if;
    select exists (select from bugle.commands c where c.timeout is not null) as has_timeouts,
      extract(epoch from s.default_timeout)::double precision as timeout, (
        -- one number for all jobs that name neither a number nor a policy, unless their commands do
        select bugle.attempts_allowed(p)
        from bugle.retry_policies p
        where p.name = 'default'
          and not exists (select from bugle.commands c where num_nonnulls(c.retry_policy, c.max_attempts) > 0)
      ) as attempts
    into v_defaults
    from bugle.settings s;
    -- not now(): a job can be enqueued and seen after this transaction began, and would start before it was created
    v_now := clock_timestamp();
    if v_is_serial then
      perform bugle.note_starts(v_request.queue, v_addresses);
    end if;
    -- Beyond about 128 kB a batch, payloads are fetched afterwards: a worker that stops reading in the middle of them
    -- would keep this transaction, and all it has locked, open.
    v_largest := greatest(131072 / v_request.slots, 256);
    -- Returned by the update itself: each further plan node, even a sort, would store every row once more.
    return query
    update bugle.jobs_live j
    set state = 'running',
      -- seed: claim_counts_no_attempt
      attempt = j.attempt + 1,
      -- seed: claim_number_is_reused
      claim = j.claim + 1,
      worker = p_worker,
      progress = null,
      progress_note = null,
      first_started_at = coalesce(j.first_started_at, v_now),
      started_at = v_now,
      updated_at = now()
    -- seed: claim_takes_no_row_locks
    where j.ctid = any (v_addresses)
    returning j.id, j.claim, j.command, j.queue, j.priority, j.attempt,
      case
        when j.max_attempts is not null then j.max_attempts
        when j.steps is not null then case when bugle.is_retried_as_a_whole(j) then bugle.max_attempts_of(j) end
        when v_defaults.attempts is not null and j.retry_policy is null then v_defaults.attempts
        -- as max_attempts_of, without a call for each job
        else coalesce(
          (select c.max_attempts from bugle.commands c where c.name = j.command),
          (select bugle.attempts_allowed(p) from bugle.retry_policies p where p.name = coalesce(
            j.retry_policy, (select c.retry_policy from bugle.commands c where c.name = j.command), 'default')))
      end,
      extract(epoch from coalesce(j.timeout,
        case when v_defaults.has_timeouts then (select c.timeout from bugle.commands c where c.name = j.command) end,
        case when j.steps is not null then (select s.chain_timeout from bugle.settings s) end))::double precision,
      j.created_at, j.run_at, j.headers,
      case when pg_column_size(j.payload) <= v_largest then j.payload end,
      j.steps, j.step,
      case when pg_column_size(j.context) <= v_largest then j.context end, j.answer,
      case when j.awaited is null and j.steps is null then j.ctid end,
      case when v_is_serial then coalesce(array_position(v_turns, j.id), 0) end,
      v_defaults.timeout;
    if cardinality(v_addresses) >= v_request.slots then
      perform bugle.pass_on(v_request.queue);
    elsif v_request.mode = 'handing_on' then
      perform bugle.hand_on(p_worker, v_request.queue);
    end if;
  end loop;
end
$$;
comment on function bugle.claim is
  'Claim at most slots ready jobs of each queue that this worker serves, the first by priority, due time and id. '
  'They are returned in no particular order: start them by turn, priority, run_at and id.';

-- The index returns the first rows of a route in order. They are locked as they are read, so that concurrent claims
-- take different ones. For a worker that serves several routes, a read without locks first counts how many of each
-- route are among the first: locking while reading would lock a whole batch for each route.
--
-- A subquery with a limit has only one join order. A plain join or "exists", planned while the table was small, may
-- start from the other side and compare every row with every other.
--
-- The cursor is a hint that the worker remembers: while an old snapshot is open, dead index entries cannot be cleaned
-- up, and every claim from the start would read all of them again.
create or replace function bugle.pick(p_request bugle.queue_request, p_routes bigint[], p_commands text[])
returns tid[]
language plpgsql
as $$
declare
  v_after_priority constant integer := coalesce((p_request.after).priority, -2147483648);
  v_after_run_at constant timestamptz := coalesce((p_request.after).run_at, '-infinity');
  v_after_id constant bigint := coalesce((p_request.after).id, 0);
  v_routes bigint[] := p_routes;
  v_shares bigint[] := array[p_request.slots];
begin
  if cardinality(p_routes) > 1 then
    select array_agg(s.route), array_agg(s.share) into v_routes, v_shares
    from (
      select f.route, count(*) as share
      from (
        select r.route
        from unnest(p_routes) r (route)
          cross join lateral (
            select j.priority, j.run_at, j.id
            from bugle.plain_ready j
            where j.queue = p_request.queue
              and j.route = r.route
              and (j.priority, j.run_at, j.id) > (v_after_priority, v_after_run_at, v_after_id)
              -- seed: claim_ignores_the_deadline
              and j.is_in_time
            order by j.priority, j.run_at, j.id
            limit p_request.slots) first
        order by first.priority, first.run_at, first.id
        limit p_request.slots) f
      group by f.route) s;
  end if;
  return array(
    select locked.address
    from unnest(v_routes, v_shares) r (route, share)
      cross join lateral (
        select j.address
        from bugle.plain_ready j
        where j.queue = p_request.queue
          and j.route = r.route
          and (j.priority, j.run_at, j.id) > (v_after_priority, v_after_run_at, v_after_id)
          and bugle.serves(p_commands, j.command, j.steps, j.step)
          -- seed: claim_ignores_the_deadline
          and j.is_in_time
        -- seed: the_last_are_claimed_first
        order by j.priority, j.run_at, j.id
        limit r.share
        -- seed: claim_takes_no_row_locks
        for update skip locked) locked);
end
$$;
comment on function bugle.pick is
  'Lock the first ready jobs of a queue that this worker serves. Returns their addresses.';

create or replace function bugle.payloads(p_worker bigint, p_nonce uuid, p_ids bigint[])
returns table (id bigint, claim bigint, payload jsonb)
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.check_worker(p_worker, p_nonce);
  return query
  select j.id, j.claim, j.payload
  from bugle.jobs_live j
  where j.id = any (p_ids)
    and j.worker = p_worker
    and j.state = 'running';
end
$$;
comment on function bugle.payloads is
  'The payloads of jobs this worker has claimed that were too large for bugle.claim to return.';
