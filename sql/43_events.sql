-- events: who is told that jobs have ended. Subscribed to by everyone who may read jobs; published by every ending.
--
-- NOTIFY in a completion has the same price as in an enqueue (20_wake.sql), so it is sent only when somebody listens:
--   whoever listens holds two advisory locks, shared, on its session: that somebody listens at all, and to this queue;
--   an ending tries to take the first exclusively, for a moment. Got it: nobody listens, and the ending is silent.
-- A silent ending holds another lock, shared, until it has committed; whoever begins to listen tries to have that one
-- exclusively, once, before it looks. So what ends is either told or seen, and the slow poll is never needed.

-- Whether a lock is held by anyone. A session does not see its own: it says so by a setting.
create or replace function bugle.is_held(p_key bigint) returns boolean
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
comment on function bugle.is_held is 'Whether another session holds an advisory lock.';

-- Called once for each batch of endings, so it is one expression: each statement of its own would cost as much as all
-- of it. The numbers are those of the functions above, which would have to be called. The lock that shows that somebody
-- listens is taken and let go of; then the one of the silent, until we commit; then the first once more: somebody may
-- begin to listen just now.
create or replace function bugle.is_heard() returns boolean
language plpgsql
as $$
begin
  return coalesce(current_setting('bugle.subscribed', true), 'off') = 'on'
    or not (
      pg_try_advisory_lock(7126490985) and pg_advisory_unlock(7126490985)
      and pg_try_advisory_xact_lock_shared(7126490986)
      and pg_try_advisory_lock(7126490985) and pg_advisory_unlock(7126490985));
end
$$;
comment on function bugle.is_heard is
  'Whether somebody listens to the ends of jobs. If not, whoever begins to waits for this transaction.';

-- Ids only, and not too many: a notification has at most 8,000 bytes.
create or replace function bugle.publish(p_ended bugle.followed[]) returns void
language plpgsql
as $$
declare
  v_all constant boolean := current_setting('bugle.subscribed', true) = 'on' or bugle.is_held(bugle.hearing_key(null));
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
        where bugle.is_held(bugle.hearing_key(q.queue))))
    group by n.queue, n.state, (n.place - 1) / 200
    order by min(n.id)) m;
end
$$;
comment on function bugle.publish is 'Tell those who listen which jobs have ended.';

create or replace function bugle.subscribe(p_queue text default null) returns text
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if not bugle.holds(bugle.hearing_key(p_queue)) then
    perform pg_advisory_lock_shared(bugle.audience_key());
    perform pg_advisory_lock_shared(bugle.hearing_key(p_queue));
  end if;
  perform set_config('bugle.subscribed', 'on', false);
  -- Those who were silent before they could see us. Tried, not waited for: a session that waits for a lock pins xmin.
  for v_try in 1 .. 200 loop
    exit when not bugle.is_held(bugle.silence_key());
    perform pg_sleep(0.005);
  end loop;
  return 'bugle_events';
end
$$;
comment on function bugle.subscribe is
  'Have the ends of a queue''s jobs, or of all, notified on the channel bugle_events until this session ends. LISTEN '
  'first, and look once more afterwards.';

create or replace function bugle.unsubscribe(p_queue text default null) returns void
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if bugle.holds(bugle.hearing_key(p_queue)) then
    perform pg_advisory_unlock_shared(bugle.hearing_key(p_queue));
    perform pg_advisory_unlock_shared(bugle.audience_key());
  end if;
  if not bugle.holds(bugle.audience_key()) then
    perform set_config('bugle.subscribed', 'off', false);
  end if;
end
$$;
comment on function bugle.unsubscribe is 'Undo bugle.subscribe of the same queue, or of all, for this session.';

-- What callers who await results ask: subscribe to the queues of these jobs, then say which have ended. In this order:
-- what ends in between is told.
create or replace function bugle.attend(p_ids bigint[])
returns table (id bigint, state text, reason text, result jsonb, last_error text)
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_queues constant text[] := array(
    select distinct j.queue from bugle.jobs_live j where j.id = any (p_ids));
begin
  -- more than a few queues: all of them, for the sake of the lock table
  perform bugle.subscribe(q.queue)
  from unnest(case when cardinality(v_queues) > 8 then array[null] else v_queues end) q (queue)
  where not bugle.holds(bugle.hearing_key(q.queue))
    and not bugle.holds(bugle.hearing_key(null));
  return query
  select e.* from bugle.endings(p_ids) e;
end
$$;
comment on function bugle.attend is
  'Subscribe this session to the queues of these jobs, and say how those of them ended that have.';
