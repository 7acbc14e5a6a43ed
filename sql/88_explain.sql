-- explain: why is this job not running, or what became of it? Called by viewers and operators.
--
-- One row for each reason, the most important first: a short name, a sentence, what would change it, and the facts as
-- JSON. All counts are bounded.

create or replace function bugle.explain(p_id bigint)
returns table (reason text, message text, fix text, facts jsonb)
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_job bugle.jobs;
begin
  select j.* into v_job from bugle.job(p_id) j;
  if v_job.id is null then
    perform bugle.refuse_unknown_job(p_id);
  end if;
  if v_job.finished_at is null and v_job.state <> 'running' then
    return query select e.* from bugle.explain_lock(v_job) e;
  end if;
  if v_job.finished_at is not null then
    return query select e.* from bugle.explain_ended(v_job) e;
  elsif v_job.state = 'ready' then
    return query select e.* from bugle.explain_ready(v_job) e;
  elsif v_job.state = 'waiting' and v_job.outstanding is not null then
    return query select e.* from bugle.explain_waiting(v_job) e;
  elsif v_job.state = 'running' then
    return query select e.* from bugle.explain_worker(v_job) e;
    return query select e.* from bugle.explain_live(v_job) e;
  else
    return query select e.* from bugle.explain_keeper(v_job) e;
    return query select e.* from bugle.explain_live(v_job) e;
    if v_job.state in ('scheduled', 'retrying') then
      return query select e.* from bugle.explain_service(v_job) e;
    end if;
  end if;
end
$$;
comment on function bugle.explain is
  'Why a job is not running, or what became of it: a message, what would change it, and the facts as JSON.';

create or replace function bugle.describe_interval(p_span interval) returns text
language sql immutable strict parallel safe
return case
  when p_span < interval '1 second' then format('%s ms', round(extract(epoch from p_span) * 1000))
  when p_span < interval '2 minutes' then format('%s s', round(extract(epoch from p_span)))
  when p_span < interval '2 hours' then format('%s min', round(extract(epoch from p_span) / 60))
  when p_span < interval '2 days' then format('%s h', round(extract(epoch from p_span) / 3600))
  else format('%s days', round(extract(epoch from p_span) / 86400))
end;
comment on function bugle.describe_interval is 'A span of time for people: 3 min, 12 h.';

create or replace function bugle.describe_wait(p_until timestamptz) returns text
language sql stable strict
return bugle.describe_interval(greatest(p_until - now(), '0'));
comment on function bugle.describe_wait is 'How long it is until a time, for people.';

create or replace function bugle.describe_step(p_job bugle.jobs) returns text
language sql immutable parallel safe
return case when p_job.steps is not null and p_job.attempt > 0 then
  format('step %s of %s (%s)', coalesce(p_job.step, 0) + 1, cardinality(p_job.steps),
    p_job.steps[coalesce(p_job.step, 0) + 1])
end;
comment on function bugle.describe_step is
  'The step a chain is in: step 2 of 3 (resize). Null if it is not a chain, or has not started.';

create or replace function bugle.describe_count(p_count bigint, p_most bigint) returns text
language sql immutable parallel safe
return p_count || case when p_count >= p_most then ' or more' else '' end;
comment on function bugle.describe_count is 'A number that was counted up to a bound: 10000 or more.';

create or replace function bugle.describe_reason(p_state text, p_reason text) returns text
language sql immutable parallel safe
return case p_reason
  when 'attempts_exhausted' then 'no attempt is left'
  when 'not_retryable' then 'its executor reported that a retry would not help'
  when 'deadline' then 'it was not started before its deadline'
  when 'timeout' then 'its last attempt took too long'
  when 'crash_loop' then 'its workers were lost repeatedly while running it'
  when 'answer_overdue' then 'no answer came in time'
  when 'no_executor' then 'no worker served it in time'
  when 'rejected' then 'its answer was an error'
  when 'resolved' then 'it was answered'
  when 'dependency_failed' then 'a job it needed did not complete'
  when 'step_failed' then 'a step failed and has no attempts left'
  when 'executor' then 'its executor cancelled it'
  when 'operator' then case p_state
    when 'cancelled' then 'an operator cancelled it'
    when 'failed' then 'an operator failed it'
    else 'an operator completed it' end
  else p_reason
end;
comment on function bugle.describe_reason is 'Why a job ended as it did: its reason in words.';

create or replace function bugle.explain_ended(p_job bugle.jobs)
returns table (reason text, message text, fix text, facts jsonb)
language sql stable
as $$
  select
    case p_job.state when 'failed' then p_job.reason else p_job.state end,
    case p_job.state
      when 'completed' then format('It was completed %s ago%s%s.', e.ago, ', in attempt ' || nullif(p_job.attempt, 0),
        ': ' || bugle.describe_reason(p_job.state, p_job.reason))
      when 'cancelled' then format('It was cancelled %s ago by %s%s.', e.ago,
        case p_job.reason
          when 'operator' then 'an operator' || coalesce((
            select format(' (%s)', c.who)
            from bugle.changes c
            where c.job = p_job.id
              and c.to_state = 'cancelled'
            order by c.id desc
            limit 1), '')
          else 'its executor' end,
        case when p_job.reason = 'executor' then ': ' || bugle.error_line(p_job.last_error) end)
      else format('It failed %s ago after %s: %s%s.', e.ago,
        case p_job.attempt when 1 then '1 attempt' else p_job.attempt || ' attempts' end,
        bugle.describe_reason(p_job.state, p_job.reason),
        concat('; in ' || bugle.describe_step(p_job), '; the last error: ' || bugle.error_line(p_job.last_error)))
    end,
    case
      when p_job.state = 'completed' then 'A completed job cannot run again. Enqueue a new one.'
      when p_job.state = 'failed' and p_job.steps is not null then
        format('select bugle.restart(%s, p_from_failed_step => true); continues with that step; '
          'without it, from the first.', p_job.id)
      else format('select bugle.restart(%s); runs it again, from attempt 0.', p_job.id)
    end,
    jsonb_strip_nulls(jsonb_build_object('state', p_job.state, 'finished_at', p_job.finished_at,
      'attempt', p_job.attempt, 'reason', p_job.reason, 'last_error_code', p_job.last_error_code,
      'worker', p_job.worker))
  from (select bugle.describe_interval(now() - p_job.finished_at) as ago) e
$$;
comment on function bugle.explain_ended is 'What became of a job that has ended.';

-- Claims and promotions skip locked rows. The row names the transaction that has locked it last, and pg_locks shows the
-- session of one that is still open to everybody. Several that share a lock are not found.
create or replace function bugle.explain_lock(p_job bugle.jobs)
returns table (reason text, message text, fix text, facts jsonb)
language sql stable
as $$
  select 'locked',
    format('Its row is locked by process %s (user %s%s)%s, which is not a worker: it cannot be started, and nothing '
      'else can change it, until that transaction ends.', l.pid, a.usename,
      ', program ' || bugle.quoted(nullif(a.application_name, '')),
      ' for ' || bugle.describe_interval(clock_timestamp() - a.xact_start)),
    format('select pg_terminate_backend(%s);', l.pid),
    jsonb_strip_nulls(jsonb_build_object('process', l.pid, 'login', a.usename, 'program', a.application_name,
      'transaction_started_at', a.xact_start))
  from bugle.jobs_live j
    join pg_catalog.pg_locks l on l.locktype = 'transactionid' and l.granted and l.transactionid = j.xmax
    left join pg_catalog.pg_stat_activity a on a.pid = l.pid
  where j.id = p_job.id
    and l.pid <> pg_backend_pid()
    and not exists (select from bugle.registrations r where r.backend_pid = l.pid and bugle.is_active(r))
$$;
comment on function bugle.explain_lock is 'Which session, other than a worker, has locked the row of a job.';

create or replace function bugle.explain_live(p_job bugle.jobs)
returns table (reason text, message text, fix text, facts jsonb)
language sql stable
as $$
  select
    p_job.state,
    case p_job.state
      when 'running' then format('It has been running for %s on worker %s%s, attempt %s%s%s.',
        bugle.describe_interval(now() - p_job.started_at), p_job.worker,
        (select format(' (%s on %s)', r.name, r.host) from bugle.registrations r where r.id = p_job.worker),
        bugle.describe_attempt(p_job), ', in ' || bugle.describe_step(p_job),
        case when p_job.progress is not null then format(', %s %% done', p_job.progress) end)
      when 'scheduled' then case
        when p_job.run_at > now() then format('It is scheduled to run in %s.', bugle.describe_wait(p_job.run_at))
        else format('It was scheduled to run %s ago.', bugle.describe_interval(now() - p_job.run_at)) end
      when 'retrying' then format('Attempt %s failed%s (%s); the next one %s.',
        bugle.describe_attempt(p_job), ' in ' || bugle.describe_step(p_job),
        coalesce(bugle.error_line(p_job.last_error), p_job.last_error_code),
        case
          when p_job.run_at > now() then 'is due in ' || bugle.describe_wait(p_job.run_at)
          else format('was due %s ago', bugle.describe_interval(now() - p_job.run_at)) end)
      when 'paused' then format('It is paused%s.', (
        select format(' by %s, for %s', c.who, bugle.describe_interval(now() - c.changed_at))
        from bugle.changes c
        where c.job = p_job.id
          and c.verb in ('pause', 'set_state')
        order by c.id desc
        limit 1))
      when 'waiting' then format('It waits for an external answer%s%s.', ', in ' || bugle.describe_step(p_job),
        case
          when p_job.answer_by > now() then ', at most for another ' || bugle.describe_wait(p_job.answer_by)
          else '; its time for one ended ' || bugle.describe_interval(now() - p_job.answer_by) || ' ago' end)
    end,
    case p_job.state
      when 'running' then format('select bugle.cancel(%s); stops it.', p_job.id)
      when 'paused' then format('select bugle.resume(%s);', p_job.id)
      when 'waiting' then format('select bugle.resolve(%s, ''{}''); or select bugle.reject(%s, ''…'');',
        p_job.id, p_job.id)
      else format('select bugle.reschedule(%s, now()); runs it now.', p_job.id)
    end,
    jsonb_strip_nulls(jsonb_build_object('state', p_job.state,
      'run_at', case when p_job.state in ('scheduled', 'retrying') then p_job.run_at end, 'attempt', p_job.attempt,
      'max_attempts', nullif(bugle.max_attempts_of(p_job), 2147483647), 'retry_policy', (bugle.policy_of(p_job)).name,
      'retry_delay', p_job.retry_delay, 'worker', p_job.worker, 'started_at', p_job.started_at,
      'answer_by', p_job.answer_by))
$$;
comment on function bugle.explain_live is 'What a job that is live and not ready is doing.';

create or replace function bugle.explain_waiting(p_job bugle.jobs)
returns table (reason text, message text, fix text, facts jsonb)
language sql stable
as $$
  with children as (
    select count(*) as all_of_them, count(*) filter (where c.state is null) as still_open
    from bugle.dependencies c
    where c.job = p_job.id
      and c.child
  ), needed as (
    select j.id, j.command, j.state
    from bugle.dependencies n
      cross join lateral (
        select l.id, l.command, l.state from bugle.jobs_live l where l.id = n.needs limit 1) j
    where n.job = p_job.id
      and n.state is null
    order by n.needs
    limit 20
  )
  select
    case when c.still_open > 0 then 'children' else 'dependencies' end,
    format(
      case
        when c.still_open > 0 then format(
          'It waits for %s children, of which %s have ended; the first of the others is ', c.all_of_them,
          c.all_of_them - c.still_open)
        when p_job.outstanding = 1 then 'It waits for '
        else format('It waits for %s jobs; the first is ', p_job.outstanding)
      end || 'job %s (%s), which is %s.', n.id, bugle.quoted(n.command), n.state),
    format('It continues when %s: select * from bugle.explain(%s); says why not yet. '
      'select bugle.set_state(%s, ''ready''); starts it without.',
      case when p_job.outstanding = 1 then 'that job has ended' else 'they have ended' end, n.id, p_job.id),
    jsonb_build_object('state', p_job.state, 'outstanding', p_job.outstanding, 'children', c.all_of_them,
      'jobs', (select jsonb_agg(a.id order by a.id) from needed a))
  from children c
    cross join (select f.* from needed f order by f.id limit 1) n
$$;
comment on function bugle.explain_waiting is 'Which jobs a waiting job waits for, and their state.';

create or replace function bugle.explain_ready(p_job bugle.jobs)
returns table (reason text, message text, fix text, facts jsonb)
language plpgsql stable
as $$
begin
  if p_job.deadline <= now() then
    return query
    select 'deadline', format('Its deadline passed %s ago: it will not be started.',
        bugle.describe_interval(now() - p_job.deadline)),
      'It fails within a second if a worker is alive.', jsonb_build_object('deadline', p_job.deadline);
    return;
  end if;
  return query select e.* from bugle.explain_service(p_job) e;
  if found then
    return;
  end if;
  return query select h.* from bugle.explain_restrictions(p_job) h;
  if found then
    return;
  end if;
  return query select e.* from bugle.explain_slots(p_job) e;
end
$$;
comment on function bugle.explain_ready is 'Why a ready job has not been started yet.';

-- What is due becomes ready, or overdue, only while a keeper is alive.
create or replace function bugle.explain_keeper(p_job bugle.jobs)
returns table (reason text, message text, fix text, facts jsonb)
language sql stable
as $$
  select 'no_keeper',
    format('It was due %s ago, but no worker has run maintenance for %s: nothing that is due is started.',
      bugle.describe_interval(now() - d.at), bugle.describe_interval(clock_timestamp() - k.ticked_at)),
    'Start a worker, of any queue: one of the live workers runs maintenance.',
    jsonb_strip_nulls(jsonb_build_object('due_at', d.at, 'keeper', k.keeper, 'ticked_at', k.ticked_at))
  from bugle.keeping k
    left join bugle.registrations r on r.id = k.keeper and bugle.is_active(r)
    cross join (
      select case
        when p_job.state in ('scheduled', 'retrying') then p_job.run_at
        when p_job.state = 'waiting' then p_job.answer_by end as at) d
  where d.at <= now()
    and (r.id is null or not bugle.is_recent(k.ticked_at, interval '15 seconds'))
$$;
comment on function bugle.explain_keeper is 'That a job is due, and that no worker is alive that would notice.';

-- The worker of a running job: lost, silent or too slow.
create or replace function bugle.explain_worker(p_job bugle.jobs)
returns table (reason text, message text, fix text, facts jsonb)
language sql stable
as $$
  select t.reason, t.message, t.fix,
    jsonb_strip_nulls(jsonb_build_object('worker', p_job.worker, 'seen_at', r.seen_at, 'lost_at', r.lost_at,
      'stopped_at', r.stopped_at, 'started_at', p_job.started_at, 'timeout', l.most))
  from bugle.settings s
    left join bugle.registrations r on r.id = p_job.worker
    cross join (
      select coalesce(p_job.timeout, (select c.timeout from bugle.commands c where c.name = p_job.command)) as most) l
    cross join lateral (
      select 'worker_lost',
        case
          when r.id is null then format('Its worker %s is not registered any more.', p_job.worker)
          when r.stopped_at is not null then format('Its worker %s (%s on %s) signed off %s ago without it.', r.id,
            r.name, r.host, bugle.describe_interval(now() - r.stopped_at))
          else format('Its worker %s (%s on %s) was lost %s ago.', r.id, r.name, r.host,
            bugle.describe_interval(now() - r.lost_at))
        end,
        format('Another worker takes it over once this one has been lost for %s, if one is alive.',
          bugle.describe_interval(s.lost_grace))
      where r.id is null or not bugle.is_active(r)
      union all
      select 'worker_silent', format('Its worker %s (%s on %s) has given no sign of life for %s.', r.id, r.name, r.host,
          bugle.describe_interval(clock_timestamp() - r.seen_at)),
        format('It counts as lost after %s, if another worker is alive.', bugle.describe_interval(s.lease))
      where bugle.is_active(r)
        and r.seen_at < clock_timestamp() - least(interval '20 seconds', s.lease)
      union all
      select 'overdue',
        'Its time limit' || coalesce(' of ' || bugle.describe_interval(l.most) || ' passed '
            || bugle.describe_interval(now() - p_job.started_at - l.most) || ' ago', ' has passed')
          || case when p_job.id = any (r.overdue) then ', and its executor does not stop.' else '.' end,
        'An executor that blocks its thread cannot be stopped: restart its worker, and let the executor wait '
        'asynchronously, or in tokio::task::spawn_blocking.'
      where bugle.is_active(r)
        and (p_job.id = any (r.overdue)
          -- its worker reports it with its next sign of life; the time it waits for its executor does not count
          or (p_job.steps is null and p_job.started_at + l.most + interval '30 seconds' < now()))
      ) t (reason, message, fix)
$$;
comment on function bugle.explain_worker is
  'That the worker of a running job is lost or silent, or that the job is overdue.';

create or replace function bugle.explain_service(p_job bugle.jobs)
returns table (reason text, message text, fix text, facts jsonb)
language plpgsql stable
as $$
declare
  v_queue constant text := bugle.quoted(p_job.queue);
  v_needs constant text := case
    when p_job.steps is null then format('an executor for its command %s', bugle.quoted(p_job.command))
    else format('executors for all remaining steps: %s',
      array_to_string(bugle.remaining(p_job.steps, p_job.step), ', ')) end;
  v_is_paused boolean;
  v_workers record;
  v_fails_at timestamptz;
begin
  return query
  select 'queue_paused',
    format('Its queue %s has been paused for %s.', v_queue, bugle.describe_interval(now() - q.paused_at)),
    format('select bugle.resume_queue(%L);', q.name), jsonb_build_object('queue', q.name, 'paused_at', q.paused_at)
  from bugle.queues q
  where q.name = p_job.queue
    and q.paused_at is not null;
  v_is_paused := found;

  select count(*) as of_queue, count(*) filter (where s.serves and r.paused_at is null) as able,
    array_agg(r.id order by r.id) filter (where s.serves and r.paused_at is not null) as paused
  into v_workers
  from bugle.registrations r
    cross join lateral bugle.serves(r.commands, p_job.command, p_job.steps, p_job.step) s (serves)
  where bugle.is_active(r)
    and p_job.queue = any (r.queues);
  if v_workers.able > 0 then
    return;
  end if;
  if v_workers.paused is not null then
    return query
    select 'worker_paused',
      case cardinality(v_workers.paused)
        when 1 then format('The only live worker that can run it, %s (%s on %s), has been paused for %s.', r.id, r.name,
          r.host, bugle.describe_interval(now() - r.paused_at))
        else format('All %s live workers that can run it are paused: %s.', cardinality(v_workers.paused),
          array_to_string(v_workers.paused, ', '))
      end,
      format('select bugle.resume_worker(%s);', r.id),
      jsonb_build_object('queue', p_job.queue, 'paused_workers', v_workers.paused)
    from bugle.registrations r
    where r.id = v_workers.paused[1];
    return;
  end if;
  v_fails_at := case when p_job.state = 'ready' and not v_is_paused then (
    select greatest(p_job.updated_at, coalesce(u.since, now())) + s.unserved_limit
    from bugle.settings s
      left join bugle.unserved_routes u on u.queue = p_job.queue
        and u.route = bugle.route(p_job.command, p_job.steps, p_job.step)) end;
  return query
  select 'unserved',
    case v_workers.of_queue
      when 0 then format('No live worker serves its queue %s.', v_queue)
      when 1 then format('One live worker serves its queue %s, but it does not have %s.', v_queue, v_needs)
      else format('%s live workers serve its queue %s, but none has %s.', v_workers.of_queue, v_queue, v_needs)
    end || coalesce(' If none comes, it fails in ' || bugle.describe_wait(v_fails_at) || '.', ''),
    format('Start a worker with queue %s and %s: the job starts %s.', v_queue, v_needs,
      case p_job.state when 'ready' then 'at once' else 'when it is due' end),
    jsonb_strip_nulls(jsonb_build_object('queue', p_job.queue, 'command', p_job.command,
      'steps', bugle.remaining(p_job.steps, p_job.step), 'workers_of_queue', v_workers.of_queue,
      'fails_at', v_fails_at));
end
$$;
comment on function bugle.explain_service is 'That the queue of a job is paused, or that no live worker serves it.';

-- Only what the workers that can run this job do, and what they would rather run: others have no slot for it.
create or replace function bugle.explain_slots(p_job bugle.jobs)
returns table (reason text, message text, fix text, facts jsonb)
language plpgsql stable set enable_seqscan = off set jit = off
as $$
declare
  v_most constant integer := 10000;
  v_queue constant text := bugle.quoted(p_job.queue);
  v_able bigint[];
  v_slots bigint;
  v_running bigint;
  v_free bigint;
  v_healthy bigint;
  v_short record;
  v_ahead bigint;
  v_counted text;
  v_facts jsonb;
begin
  select array_agg(w.id), sum(w.slots), sum(w.running), sum(greatest(w.slots - w.running, 0)),
    sum(greatest(w.slots - w.running, 0)) filter (where w.short_of is null and not w.lacks_slots)
  into v_able, v_slots, v_running, v_free, v_healthy
  from bugle.able_workers(p_job) w;
  v_ahead := bugle.count_ahead(p_job, v_able, v_most);
  v_counted := case p_job.fair_key is not null
    when true then format('%s jobs of its own fair key %s', bugle.describe_count(v_ahead, v_most),
      bugle.quoted(p_job.fair_key))
    else format('%s jobs', bugle.describe_count(v_ahead, v_most)) end;
  v_facts := jsonb_strip_nulls(jsonb_build_object('slots', v_slots, 'running', v_running, 'ahead', v_ahead,
    'fair_key', p_job.fair_key));
  if v_free = 0 then
    return query
    select 'busy', format('All %s slots of queue %s%s are busy, and %s are ahead of it.', v_slots, v_queue,
        case when exists (
          select from bugle.registrations r
          where bugle.is_active(r) and p_job.queue = any (r.queues) and r.id <> all (v_able))
        then ' on workers that can run it' else '' end, v_counted),
      format('Start more workers or give them more slots, or lower its priority number: '
        'select bugle.set_priority(%s, …);', p_job.id), v_facts;
  elsif coalesce(v_healthy, 0) = 0 then
    select w.id, w.name, w.host, w.short_of into v_short
    from bugle.able_workers(p_job) w
    where w.slots > w.running
    order by w.short_of is null, w.id
    limit 1;
    if v_short.short_of is not null then
      return query
      select 'shortage', format('Worker %s (%s on %s), which could run it, starts fewer jobs at present: %s.',
          v_short.id, v_short.name, v_short.host, v_short.short_of),
        'Fix what it is short of, or start another worker. The worker tries again every second.',
        v_facts || jsonb_build_object('worker', v_short.id, 'short_of', v_short.short_of);
    else
      return query
      select 'shared_slots', format('The slots of worker %s (%s on %s), which could run it, are taken by jobs of other '
          'databases that the same process serves.', v_short.id, v_short.name, v_short.host),
        'Wait for one to finish, raise slots in the [worker] section of its file, or start another worker.',
        v_facts || jsonb_build_object('worker', v_short.id);
    end if;
  elsif p_job.fair_key is null or v_ahead = 0 then
    return query
    select 'next', format('It is about to start: %s are ahead of it, %s of %s slots are free.', v_counted, v_free,
        v_slots),
      'Wait: it starts at once.', v_facts;
  end if;
  if p_job.fair_key is not null and v_ahead > 0 then
    return query
    select 'fair_turn',
      format('The keys of its queue take turns, one start each: %s jobs of its own key %s are ahead of it.',
        bugle.describe_count(v_ahead, v_most), bugle.quoted(p_job.fair_key)),
      format('Wait for its turn, or lower its priority number: select bugle.set_priority(%s, …);', p_job.id), v_facts;
  end if;
end
$$;
comment on function bugle.explain_slots is
  'Whether the workers that can run a ready job have a free slot, and how many jobs come before it.';

create or replace function bugle.able_workers(p_job bugle.jobs)
returns table (
  id bigint, name text, host text, slots integer, running bigint, short_of text, lacks_slots boolean)
language sql stable
as $$
  select r.id, r.name, r.host, r.slots[array_position(r.queues, p_job.queue)], (
      select count(*)
      from bugle.jobs_live j
      where bugle.is_running(j)
        and j.worker = r.id
        and j.queue = p_job.queue),
    r.short_of, r.lacks_slots
  from bugle.registrations r
  where bugle.is_active(r)
    and r.paused_at is null
    and p_job.queue = any (r.queues)
    and bugle.serves(r.commands, p_job.command, p_job.steps, p_job.step)
$$;
comment on function bugle.able_workers is
  'The live workers that can run a job: the slots they have for its queue, and how many of them are busy.';

-- A job of another command counts only if one of the same workers would run it. With a fair key, its own key counts.
create or replace function bugle.count_ahead(p_job bugle.jobs, p_workers bigint[], p_most integer) returns bigint
language plpgsql stable set enable_seqscan = off set jit = off
as $$
begin
  if p_job.fair_key is not null then
    return (
      select count(*)
      from (
        select
        from bugle.fair_ready j
        where j.queue_hash = hashtextextended(p_job.queue, 0)
          and j.route = bugle.route(p_job.command, p_job.steps, p_job.step)
          and j.fair_hash = hashtextextended(p_job.fair_key, 0)
          and j.queue = p_job.queue
          and j.fair_key = p_job.fair_key
          and (j.priority, j.run_at, j.id) < (p_job.priority, p_job.run_at, p_job.id)
        limit p_most) mine);
  end if;
  return (
    select count(*)
    from (
      select
      from (
        select distinct h.route
        from bugle.ready_heads() h
          join bugle.registrations r on r.id = any (p_workers)
            and coalesce(h.steps, array[h.command]) <@ r.commands
        where h.queue = p_job.queue) h
        cross join lateral (
          select
          from bugle.plain_ready j
          where j.queue = p_job.queue
            and j.route = h.route
            and (j.priority, j.run_at, j.id) < (p_job.priority, p_job.run_at, p_job.id)
          limit p_most) j
      limit p_most) ahead);
end
$$;
comment on function bugle.count_ahead is
  'How many ready jobs these workers would start before a ready job, up to a bound.';

-- The running one, otherwise the first one before this job that blocks it.
create or replace function bugle.order_predecessor(p_job bugle.jobs) returns bigint
language plpgsql stable
as $$
declare
  v_blocks constant boolean := coalesce(
    (select q.order_on_retry <> 'pass' from bugle.queues q where q.name = p_job.queue), true);
begin
  return (
    select h.id
    from bugle.order_line h
    where h.queue_hash = hashtextextended(p_job.queue, 0)
      and h.order_hash = hashtextextended(p_job.order_key, 0)
      and h.queue = p_job.queue
      and h.order_key = p_job.order_key
      and (h.rank = 0 or (h.id < p_job.id and (v_blocks or h.rank = 2)))
    order by h.rank = 0 desc, h.id
    limit 1);
end
$$;
comment on function bugle.order_predecessor is 'The job of the same order key that comes before this one.';

create or replace function bugle.explain_order(p_job bugle.jobs)
returns table (reason text, message text, fix text, facts jsonb)
language sql stable
as $$
  select 'order_key',
    format('Its order key %s is held by job %s, which %s.', bugle.quoted(p_job.order_key), h.id,
      case h.state
        when 'running' then 'is running'
        when 'ready' then 'comes first'
        when 'retrying' then format('is retried in %s', bugle.describe_wait(h.run_at))
        when 'scheduled' then format('continues in %s', bugle.describe_wait(h.run_at))
        when 'paused' then 'is paused'
        else 'waits for an answer' end),
    case h.state
      when 'running' then format('Wait for job %s to finish, or stop it: select bugle.cancel(%s);', h.id, h.id)
      when 'ready' then format('Wait for job %s to finish; why it has not: select * from bugle.explain(%s);', h.id,
        h.id)
      when 'paused' then format('select bugle.resume(%s);', h.id)
      when 'waiting' then format('select bugle.resolve(%s, ''{}''); or select bugle.cancel(%s);', h.id, h.id)
      else format('select bugle.reschedule(%s, now()); runs it now; '
        'select bugle.set_limits(%L, p_order_on_retry => ''pass''); lets others pass.', h.id, p_job.queue)
    end,
    jsonb_build_object('order_key', p_job.order_key, 'held_by', h.id, 'state', h.state)
  from bugle.jobs_live h
  where h.id = bugle.order_predecessor(p_job)
$$;
comment on function bugle.explain_order is 'Which job of its order key a ready job waits for.';

create or replace function bugle.explain_running(
  p_reason text, p_what text, p_limit integer, p_fix text, p_ids bigint[])
returns table (reason text, message text, fix text, facts jsonb)
language sql stable
as $$
  select p_reason,
    format('The limit of %s is reached: %s of %s are running (jobs %s%s).', p_what, cardinality(p_ids), p_limit,
      array_to_string(p_ids[1:5], ', '), case when cardinality(p_ids) > 5 then ' …' end),
    format('Wait until one finishes, or raise the limit: %s', format(p_fix, p_limit::bigint + 1)),
    jsonb_build_object('limit', p_limit, 'running', cardinality(p_ids), 'jobs', to_jsonb(p_ids[1:100]))
  where cardinality(p_ids) >= p_limit
$$;
comment on function bugle.explain_running is
  'Explains that a limit of running jobs is reached, and by which. %s in the fix stands for a higher limit.';

create or replace function bugle.explain_starts(
  p_queue text, p_key text, p_reason text, p_what text, p_limit integer, p_period interval, p_fix text)
returns table (reason text, message text, fix text, facts jsonb)
language sql stable
as $$
  select p_reason,
    format('%s has used %s of %s starts in the last %s; the next start is possible in %s.',
      upper(left(p_what, 1)) || substr(p_what, 2), p_limit - s.room, p_limit, bugle.describe_interval(p_period),
      bugle.describe_interval(greatest(s.free_at - clock_timestamp(), '0'))),
    format('Wait, or raise the limit: %s', format(p_fix, p_limit::bigint * 2)),
    jsonb_build_object('limit', p_limit, 'starts', p_limit - s.room, 'period', p_period, 'free_at', s.free_at)
  from bugle.starts_left(p_queue, p_key, p_limit, p_period) s
  where s.room <= 0
$$;
comment on function bugle.explain_starts is
  'Explains that a limit of starts in a period is reached, and until when. %s in the fix stands for a higher limit.';

create or replace function bugle.explain_restrictions(p_job bugle.jobs)
returns table (reason text, message text, fix text, facts jsonb)
language plpgsql stable set enable_seqscan = off set jit = off
as $$
declare
  v_limits bugle.queues;
  v_command_limit integer;
  v_queue constant text := format('its queue %s', bugle.quoted(p_job.queue));
  v_key constant text := format('its key %s', bugle.quoted(p_job.limit_key));
  v_set_limits constant text := replace(format('select bugle.set_limits(%L, ', p_job.queue), '%', '%%');
begin
  select q.* into v_limits from bugle.queues q where q.name = p_job.queue;
  if p_job.order_key is not null then
    return query select e.* from bugle.explain_order(p_job) e;
  end if;
  select c.max_running into v_command_limit from bugle.commands c where c.name = p_job.command;
  return query
  select e.*
  from (values
    ('queue_limit', v_queue, v_limits.max_running, v_set_limits || 'p_max_running => %s);', p_job.queue, null, null),
    ('key_limit', v_key, v_limits.max_running_per_key, v_set_limits || 'p_max_running_per_key => %s);', p_job.queue,
      p_job.limit_key, null),
    ('command_limit', format('its command %s', bugle.quoted(p_job.command)), v_command_limit,
      replace(format('select bugle.set_command_limit(%L, ', p_job.command), '%', '%%') || '%s);', null, null,
      p_job.command)) l (reason, what, most, fix, queue, limit_key, command)
    cross join lateral bugle.explain_running(l.reason, l.what, l.most, l.fix,
      array(select j.id from bugle.running_of(l.queue, l.limit_key, l.command) j (id) order by j.id)) e
  where l.most is not null
    and (l.reason <> 'key_limit' or l.limit_key is not null);
  return query
  select e.*
  from (values
    ('queue_rate', '', v_queue, v_limits.max_starts, v_limits.starts_period, v_set_limits || 'p_max_starts => %s);'),
    ('key_rate', p_job.limit_key, v_key, v_limits.max_starts_per_key, v_limits.starts_per_key_period,
      v_set_limits || 'p_max_starts_per_key => %s);')) l (reason, key, what, most, period, fix)
    cross join lateral bugle.explain_starts(p_job.queue, l.key, l.reason, l.what, l.most, l.period, l.fix) e
  where l.most is not null
    and l.key is not null;
end
$$;
comment on function bugle.explain_restrictions is 'Which limits and order hold a ready job back.';
