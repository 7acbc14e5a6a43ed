-- claim: ready -> running. Called by workers, a batch at a time, sized by their free slots.

-- How the rows are picked, and why not otherwise:
--   For each command the worker serves, the index gives the first rows in order; they are merged and only then locked.
--   Locking while scanning would lock a batch for each command. The few more than asked for stand in for those that
--   another claim has locked at this moment.
--   "update … from (select … limit n)" can become a hash join over the whole table, and even exceed the limit; an array of
--   row addresses cannot. The addresses are safe: the rows are locked by this statement.
--   Subqueries with a limit cannot be turned round: a plan made while the table was small may join the other way, and then
--   compare every row with every other.
--   The planner is told what to use: this table is empty one minute and has a million rows the next, and a plan made for
--   one must not meet the other.
-- The cursor is a hint in the worker's memory: with an old snapshot held open somewhere, dead index entries cannot be
-- cleaned up, and every claim would walk over all of them again.
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
  v_count bigint;
begin
  -- a paused worker serves nothing
  select case when r.paused_at is null then r.commands else '{}' end into v_commands
  from bugle.registrations r
  where r.id = p_worker
    and r.nonce = p_nonce
    and r.backend_pid = pg_backend_pid()
    and r.stopped_at is null;
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

  foreach v_request in array p_requests loop
    perform bugle.disarm(v_request.queue, v_request.mode);
    if v_commands = '{}' then
      -- paused: whoever follows takes the post over
      perform bugle.pass_on(v_request.queue);
      continue;
    end if;
    continue when v_request.queue = any (v_paused);
    return query
    with claimed as (
      update bugle.jobs_live j
      set state = 'running',
        attempt = j.attempt + 1,
        claim = j.claim + 1,
        worker = p_worker,
        progress = null,
        progress_note = null,
        -- not now(): a job can be enqueued and seen after this transaction began, and would have started before it was made
        first_started_at = coalesce(j.first_started_at, clock_timestamp()),
        started_at = clock_timestamp(),
        updated_at = now()
      where j.ctid = any (array(
        select locked.ctid
        from (
          select first.ctid, first.priority, first.id
          from unnest(v_commands) c (command)
            cross join lateral (
              select i.ctid, i.priority, i.id
              from bugle.jobs_live i
              where i.state = 'ready'
                and i.queue = v_request.queue
                and i.command = c.command
                and (i.priority, i.id) > (coalesce(v_request.after_priority, -2147483648), coalesce(v_request.after_id, 0))
                and (i.deadline is null or i.deadline > now())
              order by i.priority, i.id
              limit v_request.slots + 8) first
          order by first.priority, first.id
          limit v_request.slots + 8) picked
          cross join lateral (
            select l.ctid
            from bugle.jobs_live l
            where l.ctid = picked.ctid
              and l.state = 'ready'
            limit 1
            for update skip locked) locked
        order by picked.priority, picked.id
        limit v_request.slots))
      returning j.id, j.claim, j.command, j.queue, j.priority, j.attempt, j.max_attempts, j.timeout,
        j.created_at, j.run_at, j.headers, j.payload)
    select c.id, c.claim, c.command, c.queue, c.priority, c.attempt, c.max_attempts,
      extract(epoch from coalesce(c.timeout, case when v_commands_limit_time then (
        select t.timeout from bugle.commands t where t.name = c.command) end))::double precision,
      c.created_at, c.run_at, c.headers,
      -- Beyond some 128 kB a batch, payloads are fetched afterwards: a worker that stops reading in the middle of them would
      -- hold this transaction, and all it has locked, open.
      case when pg_column_size(c.payload) <= greatest(131072 / v_request.slots, 256) then c.payload end
    from claimed c
    order by c.priority, c.id;

    get diagnostics v_count = row_count;
    if v_count >= v_request.slots then
      perform bugle.pass_on(v_request.queue);
    end if;
  end loop;
end
$$;
comment on function bugle.claim is 'Take up to so many ready jobs of each queue, in order of priority and id, for commands this worker serves.';
revoke execute on function bugle.claim from public;

create or replace function bugle.refuse_claim(p_worker bigint, p_nonce uuid) returns void
language plpgsql
as $$
begin
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
revoke execute on function bugle.refuse_claim from public;

create or replace function bugle.payloads(p_worker bigint, p_ids bigint[])
returns table (id bigint, claim bigint, payload jsonb)
language sql stable
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
  select j.id, j.claim, j.payload
  from bugle.jobs_live j
  where j.id = any (p_ids)
    and j.worker = p_worker
    and j.state = 'running'
$$;
comment on function bugle.payloads is 'The payloads of jobs this worker has claimed, where bugle.claim left them out for their size.';
revoke execute on function bugle.payloads from public;
