-- release: ring for jobs that limits or order keys held back, when another job stops running or blocking.

-- Called first by every completion.
create or replace function bugle.has_limits_or_order() returns boolean
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
begin
  return exists (select from bugle.queues q where q.is_limited)
    or exists (select from bugle.commands c where c.max_running is not null)
    -- always true; makes the planner use the index of ordered jobs
    or exists (select from bugle.order_line j where j.queue_hash >= -9223372036854775808);
end
$$;
comment on function bugle.has_limits_or_order is 'Whether there are limits, or jobs with an order key.';

-- Called whenever a job leaves running without becoming ready again, before it leaves the live table.
create or replace function bugle.release(p_ids bigint[]) returns void
language plpgsql
as $$
begin
  if not bugle.has_limits_or_order() then
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
  -- a command's limit holds in all queues; chains of several names can share a route
  if exists (select from bugle.commands c where c.max_running is not null) then
    perform bugle.ring(q.queue)
    from (
      select distinct h.queue
      from bugle.ready_heads() h
      where exists (
        select
        from unnest(p_ids) i (id)
          join bugle.jobs_live l on l.id = i.id
          join bugle.commands c on c.name = l.command and c.max_running is not null
        where l.command = h.command
          or h.steps is not null)) q;
  end if;
end
$$;
comment on function bugle.release is 'Ring for jobs that these held back.';

create or replace function bugle.release_due() returns integer
language plpgsql
as $$
declare
  v_queues text[];
begin
  with due as (
    update bugle.claim_positions c
    set recheck_at = null
    where c.queue = any (array(
      select d.queue from bugle.claim_positions d where d.recheck_at <= clock_timestamp() for update skip locked))
    returning c.queue
  )
  select array_agg(d.queue) into v_queues from due d;
  perform bugle.ring(q.queue) from unnest(v_queues) q (queue);
  return coalesce(cardinality(v_queues), 0);
end
$$;
comment on function bugle.release_due is
  'Ring for queues in which a limit per period allows a start again, at the time a claim noted. Returns how many.';
