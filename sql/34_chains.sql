-- chains: which exist, and which workers can run them. Used by enqueues and claims; 35_steps.sql has how they run.

-- The one rule of what a worker may run. Routes are hashes of the same; this compares the names.
create or replace function bugle.serves(p_commands text[], p_command text, p_steps text[], p_step integer)
returns boolean
language sql immutable parallel safe
return case
  when p_steps is null then p_command = any (p_commands)
  else bugle.remaining(p_steps, p_step) <@ p_commands
end;
comment on function bugle.serves is
  'Whether a worker with executors for these commands can run a job: its command, or all remaining steps of a chain.';

-- The arguments are columns of a ready job: a function of its row would compute all of them.
create or replace function bugle.may_start(
  p_search bugle.start_search, p_command text, p_steps text[], p_step integer, p_is_in_time boolean)
returns boolean
language sql immutable parallel safe
return p_is_in_time
  and (p_search).command_rooms ->> p_command is distinct from '0'
  and bugle.serves((p_search).commands, p_command, p_steps, p_step);
comment on function bugle.may_start is
  'Whether the worker serves a ready job whose command has room and whose deadline has not passed.';

create or replace function bugle.served_routes(p_commands text[]) returns bigint[]
language plpgsql stable
as $$
begin
  return array(
    select hashtextextended(c.command, 0)
    from unnest(p_commands) c (command)
    union all
    select distinct c.route
    from bugle.chains c
    where c.last_step = any (p_commands)
      and c.steps <@ p_commands);
end
$$;
comment on function bugle.served_routes is
  'The routes that a worker with executors for these commands can run: each command, and each rest of a chain.';

-- Every live chain is noted, from each of its steps on, so that workers scan for it. Each row is looked up by index: an
-- anti join, or a plan made while the table was empty, would read all chains of that name.
create or replace function bugle.note_chain(p_command text, p_steps text[]) returns void
language plpgsql set enable_seqscan = off set jit = off
as $$
begin
  -- until the commit, nothing that is found here is pruned
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
comment on function bugle.note_chain is 'Note the steps of a chain, and what remains after each of them.';
