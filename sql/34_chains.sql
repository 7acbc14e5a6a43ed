-- chains: which there are, and which workers can run them. Used by enqueues, claims and maintenance; 35 has how they
-- are run.

-- What a chain still has to do.
create or replace function bugle.remaining(p_steps text[], p_step integer) returns text[]
language sql immutable parallel safe
return p_steps[coalesce(p_step, 0) + 1:];
comment on function bugle.remaining is 'The steps of a chain that are not done yet.';

-- The one rule of what a worker may run. Routes are hashes of the same; this compares the names.
create or replace function bugle.serves(p_commands text[], p_command text, p_steps text[], p_step integer)
returns boolean
language sql immutable parallel safe
return case
  when p_steps is null then p_command = any (p_commands)
  else p_steps[coalesce(p_step, 0) + 1:] <@ p_commands
end;
comment on function bugle.serves is
  'Whether a worker with executors for these commands can run a job: its command, or all remaining steps of a chain.';

create or replace function bugle.served_routes(p_commands text[]) returns bigint[]
language plpgsql stable
as $$
declare
  v_routes constant bigint[] := array(select hashtextextended(c.command, 0) from unnest(p_commands) c (command));
begin
  -- a database without chains pays for this probe, and no more
  if not exists (select from bugle.chains c order by c.id limit 1) then
    return v_routes;
  end if;
  return v_routes || array(
    select distinct c.route
    from bugle.chains c
    where c.last_step = any (p_commands)
      and c.steps <@ p_commands);
end
$$;
comment on function bugle.served_routes is
  'The routes that a worker with executors for these commands can run: each command, and each end of a chain.';

-- Every chain that becomes live is noted, so that workers scan for it. Each end is looked up in the index on its own:
-- as an anti join, or by a plan made while the table was empty, each new chain would read all chains of its name.
create or replace function bugle.note_chain(p_command text, p_steps text[]) returns void
language plpgsql
set enable_seqscan = off
set jit = off
as $$
begin
  -- until we commit, nothing is pruned that we find here
  lock table bugle.chains in row exclusive mode;
  if exists (
    select
    from bugle.chains c
    where c.command = p_command
      and c.route = hash_array_extended(p_steps, 0)
      and c.steps = p_steps)
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
      and c.route = hash_array_extended(p_steps[n.first:], 0)
      and c.steps = p_steps[n.first:]
    limit 1) is null;
end
$$;
comment on function bugle.note_chain is 'Note what is to be done of a chain, and of each of its ends.';

-- A few rows too many cost less than looking for them; only chains whose names are made up as they come are many.
-- Under the lock no transaction is about to enqueue a chain that seems to be gone: what was enqueued before is seen
-- by the next snapshot.
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
        select
        from bugle.chains t
        where t.command = o.command
          and t.route = o.route
          and t.steps = o.steps
          and t.id < o.id)
      or not exists (
        select from bugle.jobs_live j where j.steps is not null and j.command = o.command)
    limit p_limit));
  get diagnostics v_pruned = row_count;
  return v_pruned;
end
$$;
comment on function bugle.prune_chains is
  'Delete chains of which no job is live, and rows that are there twice. Returns how many.';
