-- chains: which there are, and who can run them. Used by enqueues, claims and the keeper; see 35_steps.sql for how they are run.

-- What a chain still has to do.
create or replace function bugle.remaining(p_steps text[], p_step integer) returns text[]
language sql immutable parallel safe
return p_steps[coalesce(p_step, 0) + 1:];
comment on function bugle.remaining is 'The steps of a chain that are not done yet.';

-- The one rule of who may run what: the command of a job, or all that is left of a chain.
create or replace function bugle.serves(p_commands text[], p_command text, p_steps text[], p_step integer) returns boolean
language sql immutable parallel safe
return case
  when p_steps is null then p_command = any (p_commands)
  else p_steps[coalesce(p_step, 0) + 1:] <@ p_commands
end;
comment on function bugle.serves is 'Whether a worker with executors for these commands can run a job: its command, or all remaining steps of a chain.';

-- The keys of what is left of chains that a worker with these executors can go on with: see jobs_live_claimable_chains.
create or replace function bugle.served_chains(p_commands text[]) returns bigint[]
language plpgsql stable
as $$
begin
  -- nobody without chains pays for more than this look
  if not exists (select from bugle.chains c order by c.id limit 1) then
    return '{}';
  end if;
  return array(
    select distinct c.key
    from bugle.chains c
    where c.last_step = any (p_commands)
      and c.steps <@ p_commands);
end
$$;
comment on function bugle.served_chains is 'Which ends of chains a worker with executors for these commands can run.';

-- For queues with limits or keys, which are looked into by name.
create or replace function bugle.with_chains(p_commands text[]) returns text[]
language plpgsql stable
as $$
begin
  if p_commands = '{}' or not exists (select from bugle.chains c order by c.id limit 1) then
    return p_commands;
  end if;
  return array(
    select unnest(p_commands)
    union
    select c.command
    from bugle.chains c
    where c.last_step = any (p_commands)
      and c.steps <@ p_commands);
end
$$;
comment on function bugle.with_chains is 'These commands, and the names of chains that a worker with executors for them can run.';

-- bugle.pick for a worker that could go on with chains. The command of a chain is only a name, and a worker that lacks one of
-- its steps must not walk over all that wait: so chains are looked for by what is left of them, which ends there are is known.
create or replace function bugle.pick_with_chains(p_request bugle.queue_request, p_commands text[], p_chains bigint[]) returns tid[]
language plpgsql
as $$
declare
  v_after_priority constant integer := coalesce(p_request.after_priority, -2147483648);
  v_after_id constant bigint := coalesce(p_request.after_id, 0);
  v_wanted text[];
  v_shares bigint[];
  v_ends bigint[];
  v_end_shares bigint[];
begin
  select array_agg(s.command) filter (where s.command is not null), array_agg(s.share) filter (where s.command is not null),
    array_agg(s.key) filter (where s.key is not null), array_agg(s.share) filter (where s.key is not null)
  into v_wanted, v_shares, v_ends, v_end_shares
  from (
    select m.command, m.key, count(*) as share
    from (
      select c.command, null::bigint as key, first.priority, first.id
      from unnest(p_commands) c (command)
        cross join lateral (
          select i.priority, i.id
          from bugle.jobs_live i
          where i.state = 'ready'
            and i.fair_key is null
            and i.order_key is null
            and i.limit_key is null
            and i.steps is null
            and i.queue = p_request.queue
            and i.command = c.command
            and (i.priority, i.id) > (v_after_priority, v_after_id)
            and (i.deadline is null or i.deadline > now())
          order by i.priority, i.id
          limit p_request.slots) first
      union all
      select null, c.key, first.priority, first.id
      from unnest(p_chains) c (key)
        cross join lateral (
          select i.priority, i.id
          from bugle.jobs_live i
          where i.state = 'ready'
            and i.fair_key is null
            and i.order_key is null
            and i.limit_key is null
            and i.steps is not null
            and i.queue = p_request.queue
            and hash_array_extended(i.steps[coalesce(i.step, 0) + 1:], 0) = c.key
            and i.steps[coalesce(i.step, 0) + 1:] <@ p_commands
            and (i.priority, i.id) > (v_after_priority, v_after_id)
            and (i.deadline is null or i.deadline > now())
          order by i.priority, i.id
          limit p_request.slots) first
      order by priority, id
      limit p_request.slots) m
    group by m.command, m.key) s;
  return array(
    select locked.ctid
    from unnest(v_wanted, v_shares) w (command, share)
      cross join lateral (
        select i.ctid
        from bugle.jobs_live i
        where i.state = 'ready'
          and i.fair_key is null
          and i.order_key is null
          and i.limit_key is null
          and i.steps is null
          and i.queue = p_request.queue
          and i.command = w.command
          and (i.priority, i.id) > (v_after_priority, v_after_id)
          and (i.deadline is null or i.deadline > now())
        order by i.priority, i.id
        limit w.share
        for update skip locked) locked
    union all
    select locked.ctid
    from unnest(v_ends, v_end_shares) w (key, share)
      cross join lateral (
        select i.ctid
        from bugle.jobs_live i
        where i.state = 'ready'
          and i.fair_key is null
          and i.order_key is null
          and i.limit_key is null
          and i.steps is not null
          and i.queue = p_request.queue
          and hash_array_extended(i.steps[coalesce(i.step, 0) + 1:], 0) = w.key
          and i.steps[coalesce(i.step, 0) + 1:] <@ p_commands
          and (i.priority, i.id) > (v_after_priority, v_after_id)
          and (i.deadline is null or i.deadline > now())
        order by i.priority, i.id
        limit w.share
        for update skip locked) locked);
end
$$;
comment on function bugle.pick_with_chains is 'Lock the first ready jobs and chains of a queue that this worker could run. Their addresses.';

-- Every chain that becomes live is noted, so that workers look for it. Each end is looked up in the index on its own: as an anti
-- join, or by a plan made while the table was empty, each new chain would read all chains of its name.
create or replace function bugle.note_chain(p_command text, p_steps text[]) returns void
language plpgsql
set enable_seqscan = off
set jit = off
as $$
begin
  -- until we commit, nobody prunes what we find here
  lock table bugle.chains in row exclusive mode;
  if exists (
    select from bugle.chains c where c.command = p_command and c.key = hash_array_extended(p_steps, 0) and c.steps = p_steps)
  then
    return;
  end if;
  insert into bugle.chains (command, steps, last_step)
  select p_command, p_steps[n.first:], p_steps[cardinality(p_steps)]
  from generate_subscripts(p_steps, 1) n (first)
  where (
    select c.id
    from bugle.chains c
    where c.command = p_command
      and c.key = hash_array_extended(p_steps[n.first:], 0)
      and c.steps = p_steps[n.first:]
    limit 1) is null;
end
$$;
comment on function bugle.note_chain is 'Note what is to be done of a chain, and of each of its ends.';

-- A few rows too many are cheaper than to look for them; only chains whose names are made up as they come are many. Under the
-- lock nobody is about to enqueue a chain that we believe to be gone: what was enqueued before is seen by the next snapshot.
create or replace function bugle.prune_chains(p_keep integer default 1000, p_limit integer default 5000) returns integer
language plpgsql
as $$
declare
  v_pruned integer;
begin
  if (select count(*) from (select from bugle.chains limit p_keep + 1) c) <= p_keep then
    return 0;
  end if;
  begin
    lock table bugle.chains in share row exclusive mode nowait;
  exception when lock_not_available then
    return 0;
  end;
  delete from bugle.chains c
  where c.id = any (array(
    select o.id
    from bugle.chains o
    where exists (
        select from bugle.chains t where t.command = o.command and t.key = o.key and t.steps = o.steps and t.id < o.id)
      or not exists (
        select from bugle.jobs_live j where j.steps is not null and j.command = o.command)
    limit p_limit));
  get diagnostics v_pruned = row_count;
  return v_pruned;
end
$$;
comment on function bugle.prune_chains is 'Forget chains of which no job is live, and rows that are there twice. Returns how many.';

-- As it is stored: a plain list of names that start at 1; or refused.
create or replace function bugle.checked_steps(p_steps text[]) returns text[]
language plpgsql immutable
as $$
declare
  v_wrong text;
begin
  if p_steps is null then
    return null;
  end if;
  if cardinality(p_steps) not between 1 and 100 or array_ndims(p_steps) <> 1 then
    perform bugle.refuse('JB001', format('column "steps" must be a list of 1 to 100 commands, not %s',
        case when array_ndims(p_steps) > 1 then format('one of %s dimensions', array_ndims(p_steps)) else cardinality(p_steps)::text end),
      'For example array[''fetch'', ''resize'', ''upload'']. Leave it out for a job that is no chain.');
  end if;
  select coalesce(bugle.quoted(s.name), 'null') into v_wrong
  from unnest(p_steps) s (name)
  where s.name is null
    or btrim(s.name, e' \t\n\r') = ''
    or length(s.name) > 200
  limit 1;
  if found then
    perform bugle.refuse('JB001', format('column "steps" must have commands of 1 to 200 characters, not %s', v_wrong),
      'Name each step as its executor is registered.');
  end if;
  return array(select s.name from unnest(p_steps) with ordinality s (name, position) order by s.position);
end
$$;
comment on function bugle.checked_steps is 'The steps of a new job as they are stored, or an error that says what is wrong with them. Null if it has none.';
