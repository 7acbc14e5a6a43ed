-- explain, limits and order: what holds a ready job back that a worker with a free slot could run. One row for each reason.

-- At most so many ids are told.
create or replace function bugle.list_jobs(p_ids bigint[]) returns text
language sql immutable parallel safe
return array_to_string(p_ids[1:5], ', ') || case when cardinality(p_ids) > 5 then ' …' else '' end;
comment on function bugle.list_jobs is 'The first ids of a list, for a sentence.';

-- The job that holds an order key before this one: the one that runs, else the first before it that is in the way.
create or replace function bugle.order_holder(p_job bugle.jobs) returns bigint
language plpgsql stable
as $$
declare
  v_blocks constant boolean := coalesce((select q.order_on_retry <> 'pass' from bugle.queues q where q.name = p_job.queue), true);
begin
  return (
    select h.id
    from bugle.jobs_live h
    where hashtextextended(h.queue, 0) = hashtextextended(p_job.queue, 0)
      and hashtextextended(h.order_key, 0) = hashtextextended(p_job.order_key, 0)
      and h.queue = p_job.queue
      and h.order_key = p_job.order_key
      and (h.state not in ('scheduled', 'waiting') or h.first_started_at is not null)
      and (h.state = 'running' or (h.id < p_job.id and (v_blocks or h.state = 'ready')))
    order by (h.state = 'running') desc, h.id
    limit 1);
end
$$;
comment on function bugle.order_holder is 'The job of the same order key that comes before this one.';

create or replace function bugle.explain_order(p_job bugle.jobs)
returns table (reason text, words text, cure text, facts jsonb)
language sql stable
as $$
  select 'order_key',
    format('Its order key %s is held by job %s, which %s.', bugle.quoted(p_job.order_key), h.id,
      case h.state
        when 'running' then 'is running'
        when 'ready' then 'comes first'
        when 'retrying' then format('is tried again in %s', bugle.describe_interval(greatest(h.run_at - now(), '0')))
        when 'scheduled' then format('goes on in %s', bugle.describe_interval(greatest(h.run_at - now(), '0')))
        when 'paused' then 'is paused'
        else 'waits for an answer' end),
    case h.state
      when 'running' then format('Its end; select bugle.cancel(%s); stops it.', h.id)
      when 'ready' then format('Its end; see select * from bugle.explain(%s);', h.id)
      when 'paused' then format('select bugle.resume(%s);', h.id)
      when 'waiting' then format('select bugle.resolve(%s, ''{}''); or bugle.cancel.', h.id)
      else format('select bugle.reschedule(%s, now()); runs it now; select bugle.set_limits(%L, p_order_on_retry => ''pass''); lets others pass.',
        h.id, p_job.queue)
    end,
    jsonb_build_object('order_key', p_job.order_key, 'held_by', h.id, 'state', h.state)
  from bugle.jobs_live h
  where h.id = bugle.order_holder(p_job)
$$;
comment on function bugle.explain_order is 'Which job of its order key a ready job waits for.';

-- How many run under a limit, and which.
create or replace function bugle.explain_running(
  p_reason text, p_what text, p_limit integer, p_cure text, p_ids bigint[])
returns table (reason text, words text, cure text, facts jsonb)
language sql stable
as $$
  select p_reason, format('The limit of %s is reached: %s of %s run (jobs %s).', p_what, cardinality(p_ids), p_limit, bugle.list_jobs(p_ids)),
    format('The end of one of them; or %s', p_cure),
    jsonb_build_object('limit', p_limit, 'running', cardinality(p_ids), 'jobs', to_jsonb(p_ids[1:100]))
  where cardinality(p_ids) >= p_limit
$$;
comment on function bugle.explain_running is 'That a limit of running jobs is reached, and by which.';

create or replace function bugle.explain_starts(
  p_queue text, p_key text, p_reason text, p_what text, p_limit integer, p_period interval, p_cure text)
returns table (reason text, words text, cure text, facts jsonb)
language sql stable
as $$
  select p_reason, format('%s of %s starts of %s were in the last %s; the next may be in %s.', p_limit - s.room, p_limit, p_what,
      bugle.describe_interval(p_period), bugle.describe_interval(greatest(s.free_at - clock_timestamp(), '0'))),
    format('Time; or %s', p_cure),
    jsonb_build_object('limit', p_limit, 'starts', p_limit - s.room, 'period', p_period, 'free_at', s.free_at)
  from bugle.starts_left(p_queue, p_key, p_limit, p_period) s
  where s.room <= 0
$$;
comment on function bugle.explain_starts is 'That a limit of starts in a period is reached, and until when.';

create or replace function bugle.explain_held(p_job bugle.jobs)
returns table (reason text, words text, cure text, facts jsonb)
language plpgsql stable
set enable_seqscan = off
set jit = off
as $$
declare
  v_limits bugle.queues;
  v_most constant integer := 10000;
begin
  select q.* into v_limits from bugle.queues q where q.name = p_job.queue;
  if p_job.order_key is not null then
    return query
    select e.* from bugle.explain_order(p_job) e;
  end if;
  return query
  select e.*
  from bugle.explain_running('queue_limit', format('its queue %s', bugle.quoted(p_job.queue)), v_limits.max_running,
    format('select bugle.set_limits(%L, p_max_running => %s);', p_job.queue, v_limits.max_running::bigint + 1), array(
      select j.id from bugle.jobs_live j where j.state like 'running' and j.worker is not null and j.queue = p_job.queue order by j.id)) e
  where v_limits.max_running is not null;
  return query
  select e.*
  from bugle.explain_running('key_limit', format('its limit key %s', bugle.quoted(p_job.limit_key)), v_limits.max_running_per_key,
    format('select bugle.set_limits(%L, p_max_running_per_key => %s);', p_job.queue, v_limits.max_running_per_key::bigint + 1), array(
      select j.id
      from bugle.jobs_live j
      where j.state like 'running'
        and j.worker is not null
        and j.queue = p_job.queue
        and j.limit_key = p_job.limit_key
      order by j.id)) e
  where v_limits.max_running_per_key is not null
    and p_job.limit_key is not null;
  return query
  select e.*
  from bugle.commands t
    cross join lateral bugle.explain_running('command_limit', format('its command %s', bugle.quoted(t.name)), t.max_running,
      format('select bugle.set_command_limit(%L, %s);', t.name, t.max_running::bigint + 1), array(
        select j.id from bugle.jobs_live j where j.state like 'running' and j.worker is not null and j.command = t.name order by j.id)) e
  where t.name = p_job.command
    and t.max_running is not null;
  return query
  select e.*
  from bugle.explain_starts(p_job.queue, '', 'queue_rate', format('its queue %s', bugle.quoted(p_job.queue)), v_limits.max_starts,
    v_limits.starts_period, format('select bugle.set_limits(%L, p_max_starts => %s);', p_job.queue, v_limits.max_starts::bigint * 2)) e
  where v_limits.max_starts is not null;
  return query
  select e.*
  from bugle.explain_starts(p_job.queue, p_job.limit_key, 'key_rate', format('its limit key %s', bugle.quoted(p_job.limit_key)),
    v_limits.max_starts_per_key, v_limits.starts_per_key_period,
    format('select bugle.set_limits(%L, p_max_starts_per_key => %s);', p_job.queue, v_limits.max_starts_per_key::bigint * 2)) e
  where v_limits.max_starts_per_key is not null
    and p_job.limit_key is not null;
  if p_job.fair_key is not null then
    return query
    select 'fair_turn', format('The keys of its queue take turns, one start each: %s%s jobs of its own key %s are ahead of it.', a.ahead,
        case when a.ahead = v_most then ' or more' else '' end, bugle.quoted(p_job.fair_key)),
      'Its turn; within its key a smaller priority: select bugle.set_priority(…).',
      jsonb_build_object('fair_key', p_job.fair_key, 'ahead', a.ahead)
    from (
      select count(*) as ahead
      from (
        select
        from bugle.jobs_live j
        where j.state = 'ready'
          and j.fair_key is not null
          and hashtextextended(j.queue, 0) = hashtextextended(p_job.queue, 0)
          and hashtextextended(j.command, 0) = hashtextextended(p_job.command, 0)
          and hashtextextended(j.fair_key, 0) = hashtextextended(p_job.fair_key, 0)
          and j.queue = p_job.queue
          and j.fair_key = p_job.fair_key
          and j.command = p_job.command
          and (j.priority, j.id) < (p_job.priority, p_job.id)
        limit v_most) mine) a;
  end if;
end
$$;
comment on function bugle.explain_held is 'What of limits, order and turns holds a ready job back.';
