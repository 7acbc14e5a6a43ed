-- claim: ready -> running. Called by workers, a batch at a time, sized by their free slots.

-- Rows are picked and locked first (bugle.pick), then marked by their addresses: "update … from (select … limit n)" can become
-- a hash join over the whole table, and even exceed the limit; an array of row addresses cannot.
create or replace function bugle.claim(p_worker bigint, p_nonce uuid, p_requests bugle.queue_request[])
returns setof bugle.claimed_job
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_material = off
set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  v_commands text[];
  v_request bugle.queue_request;
  v_synchronous boolean;
  v_commands_limit_time constant boolean := exists (select from bugle.commands t where t.timeout is not null);
  v_paused text[];
  v_exact text[];
  v_unavailable text[];
  v_is_exact boolean;
  v_ids bigint[];
  v_places tid[];
  v_limit_keys text[];
  v_count bigint;
  v_now timestamptz;
  v_most integer;
begin
  -- a paused worker serves nothing
  select case when r.paused_at is null then r.commands else '{}' end into v_commands
  from bugle.registrations r
  where r.id = p_worker
    and r.nonce = p_nonce
    and r.backend_pid = pg_backend_pid()
    and r.stopped_at is null
    -- given up: what it claims now would be taken away from it by the next rescue
    and r.lost_at is null;
  if not found then
    perform bugle.refuse_claim(p_worker, p_nonce);
  end if;
  -- under repeatable read a limit of one let three run
  if current_setting('transaction_isolation') <> 'read committed' then
    perform bugle.refuse('JB012', format('jobs cannot be claimed under isolation level %s',
      current_setting('transaction_isolation')), 'Use read committed, outside of any larger transaction.');
  end if;
  select bool_or(q.synchronous_claims), array_agg(q.name) filter (where q.paused_at is not null)
  into v_synchronous, v_paused
  from bugle.queues q
  where q.name = any (array(select r.queue from unnest(p_requests) r));
  -- A claim that is lost in a crash of the server is a job that is ready again. (A SET clause of this function would be
  -- undone before the commit.)
  if v_synchronous is not true then
    perform set_config('synchronous_commit', 'off', true);
  end if;

  -- queues with limits or keys: see 31_limits.sql
  select l.exact, l.unavailable into v_exact, v_unavailable
  from bugle.lock_limits(array(select r.queue from unnest(p_requests) r), bugle.with_chains(v_commands)) l;

  foreach v_request in array coalesce(p_requests, '{}') loop
    perform bugle.disarm(v_request.queue, v_request.mode);
    if v_commands = '{}' then
      -- paused: whoever follows takes the post over
      perform bugle.pass_on(v_request.queue);
      continue;
    end if;
    -- no number would be no limit
    continue when v_request.queue = any (v_paused) or v_request.queue = any (v_unavailable)
      or v_request.slots is null or v_request.slots < 1;
    v_request.slots := least(v_request.slots, 10000);
    v_is_exact := v_request.queue = any (v_exact);
    if v_is_exact then
      select p.ids, p.places, p.limit_keys into v_ids, v_places, v_limit_keys from bugle.pick_exactly(v_request, v_commands) p;
    else
      v_places := bugle.pick(v_request, v_commands);
    end if;
    -- Asked again after picking: a pause that was committed before a picked job was enqueued is seen by this snapshot, which
    -- is the younger one. So no job that was enqueued after a pause of its queue, or of this worker, starts.
    continue when exists (select from bugle.queues q where q.name = v_request.queue and q.paused_at is not null);
    if exists (select from bugle.registrations r where r.id = p_worker and r.paused_at is not null) then
      perform bugle.pass_on(v_request.queue);
      continue;
    end if;
    -- not now(): a job can be enqueued and seen after this transaction began, and would have started before it was made
    v_now := clock_timestamp();
    -- Beyond some 128 kB a batch, payloads are fetched afterwards: a worker that stops reading in the middle of them would
    -- hold this transaction, and all it has locked, open.
    v_most := greatest(131072 / v_request.slots, 256);
    -- Straight from the update: each further node of a plan, a sort too, would store every row once more on its way. Whoever
    -- starts them puts them in order.
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
    where j.ctid = any (v_places)
    returning j.id, j.claim, j.command, j.queue, j.priority, j.attempt, j.max_attempts,
      extract(epoch from coalesce(j.timeout, case when v_commands_limit_time then (
        select t.timeout from bugle.commands t where t.name = j.command) end,
        case when j.steps is not null then (select s.chain_timeout from bugle.settings s) end))::double precision,
      j.created_at, j.run_at, j.headers,
      case when pg_column_size(j.payload) <= v_most then j.payload end,
      j.steps, j.step,
      case when pg_column_size(j.context) <= v_most then j.context end, j.answer,
      case when j.watched is null and j.steps is null then j.ctid end, case when v_is_exact then coalesce(array_position(v_ids, j.id), 0) end;

    get diagnostics v_count = row_count;
    if v_is_exact then
      perform bugle.note_starts(v_request.queue, v_limit_keys);
    end if;
    if v_count >= v_request.slots then
      perform bugle.pass_on(v_request.queue);
    elsif v_request.mode = 'lookout' then
      perform bugle.hand_on(p_worker, v_request.queue);
    end if;
  end loop;
end
$$;
comment on function bugle.claim is 'Take up to so many ready jobs of each queue, the first by priority and id, for commands and whole chains this worker serves. They come in no order: start them by turn, priority and id.';

-- How the rows are picked, and why not otherwise:
--   The index gives the first rows of a command in order, and they are locked as they are met, so that two claims at the
--   same time take different ones. Where several of a worker's commands wait, it first counts, without locks, how many of each
--   are among the first: locking while looking would lock a batch for each command. Mostly one does, which a look at each tells.
--   Subqueries with a limit cannot be turned round: a plan made while the table was small may join the other way, and then
--   compare every row with every other. Nor can those that only ask whether there is one; "exists" can.
--   The planner is told what to use (by bugle.claim): this table is empty one minute and has a million rows the next, and a
--   plan made for one must not meet the other.
--   Chains have an index of their own, by what is left of them: see bugle.pick_with_chains.
-- The cursor is a hint in the worker's memory: with an old snapshot held open somewhere, dead index entries cannot be
-- cleaned up, and every claim would walk over all of them again.
create or replace function bugle.pick(p_request bugle.queue_request, p_commands text[]) returns tid[]
language plpgsql
as $$
declare
  v_after_priority integer := coalesce(p_request.after_priority, -2147483648);
  v_after_id bigint := coalesce(p_request.after_id, 0);
  v_wanted text[] := p_commands;
  v_shares bigint[] := array[p_request.slots];
  v_chains constant bigint[] := bugle.served_chains(p_commands);
begin
  if v_chains <> '{}' then
    return bugle.pick_with_chains(p_request, p_commands, v_chains);
  end if;
  if cardinality(p_commands) > 1 then
    select array_agg(c.command),
      coalesce((array_agg(f.priority order by f.priority, f.id))[1], v_after_priority),
      -- what lies before the first of them need not be walked over again
      coalesce((array_agg(f.id order by f.priority, f.id))[1] - 1, v_after_id)
    into v_wanted, v_after_priority, v_after_id
    from unnest(p_commands) c (command)
      cross join lateral (
        select i.priority, i.id
        from bugle.jobs_live i
        where i.state = 'ready'
          and i.steps is null
          and i.fair_key is null
          and i.order_key is null
          and i.limit_key is null
          and i.queue = p_request.queue
          and i.command = c.command
          and (i.priority, i.id) > (v_after_priority, v_after_id)
        order by i.priority, i.id
        limit 1) f;
  end if;
  if cardinality(v_wanted) > 1 then
    select array_agg(s.command), array_agg(s.share) into v_wanted, v_shares
    from (
      select m.command, count(*) as share
      from (
        select c.command
        from unnest(v_wanted) c (command)
          cross join lateral (
            select i.priority, i.id
            from bugle.jobs_live i
            where i.state = 'ready'
              and i.steps is null
              and i.fair_key is null
              and i.order_key is null
              and i.limit_key is null
              and i.queue = p_request.queue
              and i.command = c.command
              and (i.priority, i.id) > (v_after_priority, v_after_id)
              -- seed: claim_ignores_the_deadline
              and (i.deadline is null or i.deadline > now())
            order by i.priority, i.id
            limit p_request.slots) first
        order by first.priority, first.id
        limit p_request.slots) m
      group by m.command) s;
  end if;
  return array(
    select locked.ctid
    from unnest(v_wanted, v_shares) w (command, share)
      cross join lateral (
        select i.ctid
        from bugle.jobs_live i
        where i.state = 'ready'
          and i.steps is null
          and i.fair_key is null
          and i.order_key is null
          and i.limit_key is null
          and i.queue = p_request.queue
          and i.command = w.command
          and (i.priority, i.id) > (v_after_priority, v_after_id)
          -- seed: claim_ignores_the_deadline
          and (i.deadline is null or i.deadline > now())
        -- seed: the_last_are_claimed_first
        order by i.priority, i.id
        limit w.share
        -- seed: claim_takes_no_row_locks
        for update skip locked) locked);
end
$$;
comment on function bugle.pick is 'Lock the first ready jobs of a queue that this worker could run. Their addresses.';

create or replace function bugle.refuse_claim(p_worker bigint, p_nonce uuid) returns void
language plpgsql
as $$
begin
  if exists (
    select
    from bugle.registrations r
    where r.id = p_worker
      and r.nonce = p_nonce
      and r.stopped_at is null
      and r.lost_at is not null)
  then
    perform bugle.refuse('JB011', format('worker %s was given up as lost', p_worker),
      'Call bugle.attach, naming what still runs, before claiming more.');
  end if;
  if exists (
    select from bugle.registrations r where r.id = p_worker and r.nonce = p_nonce and r.stopped_at is null)
  then
    perform bugle.refuse('JB011', format('worker %s is attached from another session than this one', p_worker),
      'Claim on the connection that called bugle.attach. A pooler in transaction mode hands out another one each time: connect workers directly.');
  end if;
  perform bugle.refuse('JB010', format('there is no worker %s with this nonce', p_worker),
    'Register again with bugle.register.');
end
$$;
comment on function bugle.refuse_claim is 'Say why a session may not claim.';

create or replace function bugle.payloads(p_worker bigint, p_nonce uuid, p_ids bigint[])
returns table (id bigint, claim bigint, payload jsonb)
language plpgsql stable
security definer
set search_path = pg_catalog, bugle, pg_temp
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
comment on function bugle.payloads is 'The payloads of jobs this worker has claimed, where bugle.claim left them out for their size.';
