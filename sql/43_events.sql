-- events: notifications that jobs have ended. Sessions that may read jobs subscribe; every outcome publishes.
--
-- NOTIFY costs a completion as much as an enqueue (20_wake.sql), so it is sent only if there are subscribers:
--   a subscriber holds two shared advisory locks on its session: one for any subscription, one for this queue;
--   an outcome tries to take the first one exclusively, for a moment. If it can, there is no subscriber, and no
--   notification is sent.
-- An outcome without a notification holds a third lock, shared, until it has committed. A new subscriber waits until it
-- can take that one exclusively before it reads. So it is either notified of an outcome or reads it, and never has to
-- poll.

-- A session cannot detect its own locks: bugle.subscribed tells it that it is a subscriber itself.
create or replace function bugle.is_locked(p_key bigint) returns boolean
language plpgsql
as $$
begin
  if pg_try_advisory_lock(p_key) then
    perform pg_advisory_unlock(p_key);
    return false;
  end if;
  return true;
end
$$;
comment on function bugle.is_locked is 'Whether another session holds an advisory lock.';

-- Called once per batch of outcomes, so it is one expression: each further statement would cost as much as all of it.
-- The lock of subscribers is taken and released; then the other one, until the commit; then the first once more,
-- because a session may have subscribed in between.
create or replace function bugle.is_heard() returns boolean
language plpgsql
as $$
begin
  return coalesce(current_setting('bugle.subscribed', true), 'off') = 'on'
    or not (
      pg_try_advisory_lock(bugle.subscribers_key()) and pg_advisory_unlock(bugle.subscribers_key())
      and pg_try_advisory_xact_lock_shared(bugle.silence_key())
      and pg_try_advisory_lock(bugle.subscribers_key()) and pg_advisory_unlock(bugle.subscribers_key()));
end
$$;
comment on function bugle.is_heard is
  'Whether a session subscribed to events. If none has, new subscribers wait for this transaction.';

-- At most 200 ids each: a notification has at most 8,000 bytes.
create or replace function bugle.publish(p_ended bugle.ended_job[]) returns void
language plpgsql
as $$
declare
  v_all constant boolean := current_setting('bugle.subscribed', true) = 'on'
    or bugle.is_locked(bugle.subscription_key(null));
begin
  perform bugle.announce('bugle_events', jsonb_build_object('queue', m.queue, 'state', m.state, 'jobs', m.jobs)::text)
  from (
    select n.queue, n.state, jsonb_agg(n.id order by n.id) as jobs
    from (
      select e.id, e.queue, e.state, row_number() over (partition by e.queue, e.state order by e.id) as place
      from unnest(p_ended) e) n
    where v_all is true
      or n.queue = any (array(
        select q.queue
        from (select distinct e.queue from unnest(p_ended) e) q
        where bugle.is_locked(bugle.subscription_key(q.queue))))
    group by n.queue, n.state, (n.place - 1) / 200
    order by min(n.id)) m;
end
$$;
comment on function bugle.publish is 'Notify subscribers of jobs that have ended.';

-- A completion that looks for subscribers holds the lock exclusively for a moment, any other login for as long as it
-- likes. So the lock is tried, for at most a quarter of a second: a session that waits for a lock pins the oldest
-- snapshot of the server.
create or replace function bugle.try_shared(p_key bigint) returns boolean
language plpgsql
as $$
begin
  for v_try in 1 .. 50 loop
    if pg_try_advisory_lock_shared(p_key) then
      return true;
    end if;
    perform pg_sleep(0.005);
  end loop;
  return false;
end
$$;
comment on function bugle.try_shared is
  'Take an advisory lock, shared, for this session, unless another holds it exclusively for longer than a moment.';

create or replace function bugle.subscribe(p_queue text default null) returns text
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if not bugle.holds(bugle.subscription_key(p_queue)) then
    if not bugle.try_shared(bugle.subscribers_key()) then
      return null;
    end if;
    if not bugle.try_shared(bugle.subscription_key(p_queue)) then
      perform pg_advisory_unlock_shared(bugle.subscribers_key());
      return null;
    end if;
  end if;
  perform set_config('bugle.subscribed', 'on', false);
  -- Outcomes that began before this session subscribed. Tried, not waited for, like the other locks.
  for v_try in 1 .. 200 loop
    exit when not bugle.is_locked(bugle.silence_key());
    perform pg_sleep(0.005);
  end loop;
  return 'bugle_events';
end
$$;
comment on function bugle.subscribe is
  'Subscribe this session to the outcomes of a queue''s jobs, or of all jobs, on the channel bugle_events. LISTEN '
  'before, read the jobs afterwards. Null if another session keeps it from subscribing: poll.';

create or replace function bugle.unsubscribe(p_queue text default null) returns void
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if bugle.holds(bugle.subscription_key(p_queue)) then
    perform pg_advisory_unlock_shared(bugle.subscription_key(p_queue));
    perform pg_advisory_unlock_shared(bugle.subscribers_key());
  end if;
  if not bugle.holds(bugle.subscribers_key()) then
    perform set_config('bugle.subscribed', 'off', false);
  end if;
end
$$;
comment on function bugle.unsubscribe is 'Undo bugle.subscribe of the same queue, or of all queues, for this session.';

-- For callers that await results: subscribes first and reads afterwards, so that no outcome is missed.
create or replace function bugle.attend(p_ids bigint[])
returns table (id bigint, state text, reason text, result jsonb, last_error text)
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_queues constant text[] := array(
    select distinct j.queue from bugle.jobs_live j where j.id = any (p_ids));
begin
  -- more than a few queues: subscribe to all, to save locks
  perform bugle.subscribe(q.queue)
  from unnest(case when cardinality(v_queues) > 8 then array[null] else v_queues end) q (queue)
  where not bugle.holds(bugle.subscription_key(q.queue))
    and not bugle.holds(bugle.subscription_key(null));
  return query
  select e.* from bugle.endings(p_ids) e;
end
$$;
comment on function bugle.attend is
  'Subscribe this session to the queues of these jobs, if possible. Returns how those that have ended did so.';
