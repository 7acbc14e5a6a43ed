-- explain: why is this job not running, or what became of it? Called by viewers and operators.
--
-- One row for each reason, the most important first: a short name, a sentence, what would change it, and the facts as JSON.
-- Nothing is counted without a bound.

create or replace function bugle.explain(p_id bigint)
returns table (reason text, words text, cure text, facts jsonb)
language plpgsql stable
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_job bugle.jobs;
begin
  select j.* into v_job from bugle.job(p_id) j;
  if v_job.id is null then
    perform bugle.refuse('JB030', format('there is no job %s', p_id), 'It may have been removed, or dropped with its day of history.');
  end if;
  if v_job.finished_at is not null then
    return query
    select e.* from bugle.explain_ended(v_job) e;
  elsif v_job.state = 'ready' then
    return query
    select e.* from bugle.explain_ready(v_job) e;
  elsif v_job.state = 'waiting' and v_job.outstanding is not null then
    return query
    select e.* from bugle.explain_waiting(v_job) e;
  else
    return query
    select e.* from bugle.explain_live(v_job) e;
  end if;
end
$$;
comment on function bugle.explain is 'Why a job is not running, or what became of it: in words, with what would change it, and as JSON.';

-- A span of time as people say it.
create or replace function bugle.describe_interval(p_span interval) returns text
language sql immutable parallel safe
return case
  when p_span < interval '1 second' then format('%s ms', round(extract(epoch from p_span) * 1000))
  when p_span < interval '2 minutes' then format('%s s', round(extract(epoch from p_span)))
  when p_span < interval '2 hours' then format('%s min', round(extract(epoch from p_span) / 60))
  when p_span < interval '2 days' then format('%s h', round(extract(epoch from p_span) / 3600))
  else format('%s days', round(extract(epoch from p_span) / 86400))
end;
comment on function bugle.describe_interval is 'A span of time as people say it: 3 min, 12 h.';

-- Which step of a chain is, or was, the current one.
create or replace function bugle.describe_step(p_job bugle.jobs) returns text
language sql immutable parallel safe
return case when p_job.steps is not null and p_job.attempt > 0 then
  format('step %s of %s (%s)', coalesce(p_job.step, 0) + 1, cardinality(p_job.steps), p_job.steps[coalesce(p_job.step, 0) + 1])
end;
comment on function bugle.describe_step is 'The step a chain is in: step 2 of 3 (resize). Null if it is no chain, or was not begun.';

create or replace function bugle.explain_ended(p_job bugle.jobs)
returns table (reason text, words text, cure text, facts jsonb)
language sql stable
as $$
  select
    case p_job.state when 'failed' then p_job.reason else p_job.state end,
    case p_job.state
      when 'completed' then format('It was completed %s ago, in attempt %s.', bugle.describe_interval(now() - p_job.finished_at), p_job.attempt)
      when 'cancelled' then format('It was cancelled %s ago (%s)%s.', bugle.describe_interval(now() - p_job.finished_at), p_job.reason,
        (select format(' by %s', c.who) from bugle.changes c where c.job = p_job.id and c.to_state = 'cancelled' order by c.id desc limit 1))
      else format('It failed %s ago after %s attempts: %s%s.', bugle.describe_interval(now() - p_job.finished_at), p_job.attempt,
        case p_job.reason
          when 'attempts_exhausted' then 'no attempt is left'
          when 'not_retryable' then 'its executor said not to try again'
          when 'deadline' then 'it was not started before its deadline'
          when 'timeout' then 'its last attempt took too long'
          when 'crash_loop' then 'its workers were lost again and again while they ran it'
          when 'answer_overdue' then 'no answer came in time'
          when 'rejected' then 'it was answered with an error'
          when 'dependency_failed' then 'a job it needed did not complete'
          when 'step_failed' then 'a step failed, and the tries of the step are used up'
          else p_job.reason end,
        concat('; in ' || bugle.describe_step(p_job), '; the last error: ' || left(p_job.last_error, 200)))
    end,
    case p_job.state
      when 'completed' then 'Nothing: completed work is never run again. Enqueue a new job.'
      when 'failed' then case when p_job.steps is null then format('select bugle.restart(%s); runs it again, from attempt 0.', p_job.id)
        else format('select bugle.restart(%s, p_from_failed_step => true); goes on with that step; without it, from the first.', p_job.id) end
      else format('select bugle.restart(%s); runs it again, from attempt 0.', p_job.id)
    end,
    jsonb_strip_nulls(jsonb_build_object('state', p_job.state, 'finished_at', p_job.finished_at, 'attempt', p_job.attempt,
      'reason', p_job.reason, 'last_error_code', p_job.last_error_code, 'worker', p_job.worker))
$$;
comment on function bugle.explain_ended is 'What became of a job that has ended.';

create or replace function bugle.explain_live(p_job bugle.jobs)
returns table (reason text, words text, cure text, facts jsonb)
language sql stable
as $$
  select
    p_job.state,
    case p_job.state
      when 'running' then format('It runs since %s on worker %s%s, attempt %s%s%s.', bugle.describe_interval(now() - p_job.started_at), p_job.worker,
        (select format(' (%s on %s)', r.name, r.host) from bugle.registrations r where r.id = p_job.worker), p_job.attempt,
        ', in ' || bugle.describe_step(p_job), case when p_job.progress is not null then format(', %s %% done', p_job.progress) end)
      when 'scheduled' then format('It is scheduled to run in %s.', bugle.describe_interval(greatest(p_job.run_at - now(), '0')))
      when 'retrying' then format('Attempt %s failed%s (%s); the next one is due in %s.', p_job.attempt, ' in ' || bugle.describe_step(p_job),
        left(coalesce(p_job.last_error, p_job.last_error_code), 200), bugle.describe_interval(greatest(p_job.run_at - now(), '0')))
      when 'paused' then format('It is paused%s.',
        (select format(' by %s since %s', c.who, bugle.describe_interval(now() - c.changed_at))
         from bugle.changes c where c.job = p_job.id and c.verb in ('pause', 'set_state') order by c.id desc limit 1))
      when 'waiting' then format('It waits for an answer from outside%s%s.', ', in ' || bugle.describe_step(p_job),
        case when p_job.answer_by is not null then
          format(', at most for another %s', bugle.describe_interval(greatest(p_job.answer_by - now(), '0'))) end)
    end,
    case p_job.state
      when 'running' then format('select bugle.cancel(%s); stops it.', p_job.id)
      when 'paused' then format('select bugle.resume(%s);', p_job.id)
      when 'waiting' then format('select bugle.resolve(%s, ''{}''); or bugle.reject.', p_job.id)
      else format('select bugle.reschedule(%s, now()); runs it now.', p_job.id)
    end,
    jsonb_strip_nulls(jsonb_build_object('state', p_job.state, 'run_at', case when p_job.state in ('scheduled', 'retrying') then p_job.run_at end,
      'attempt', p_job.attempt, 'worker', p_job.worker, 'started_at', p_job.started_at, 'answer_by', p_job.answer_by))
$$;
comment on function bugle.explain_live is 'What a job that is alive and not ready is doing.';

create or replace function bugle.explain_ready(p_job bugle.jobs)
returns table (reason text, words text, cure text, facts jsonb)
language plpgsql stable
as $$
declare
  v_most constant integer := 10000;
  v_queue_workers integer;
  v_able integer;
  v_paused bigint[];
  v_slots bigint;
  v_running bigint;
  v_ahead bigint;
  v_found boolean := false;
  v_needs constant text := case when p_job.steps is null then format('an executor for its command %s', bugle.quoted(p_job.command))
    else format('executors for all remaining steps: %s', array_to_string(bugle.remaining(p_job.steps, p_job.step), ', ')) end;
begin
  if p_job.deadline <= now() then
    return query
    select 'deadline', format('Its deadline passed %s ago: it will not be started any more.', bugle.describe_interval(now() - p_job.deadline)),
      'Nothing: it fails within a second if a worker is alive.', jsonb_build_object('deadline', p_job.deadline);
    return;
  end if;
  if exists (select from bugle.queues q where q.name = p_job.queue and q.paused_at is not null) then
    v_found := true;
    return query
    select 'queue_paused', format('Its queue %s is paused since %s.', bugle.quoted(q.name), bugle.describe_interval(now() - q.paused_at)),
      format('select bugle.resume_queue(%L);', q.name), jsonb_build_object('queue', q.name, 'paused_at', q.paused_at)
    from bugle.queues q
    where q.name = p_job.queue;
  end if;

  select count(*), count(*) filter (where s.serves and r.paused_at is null), array_agg(r.id order by r.id) filter (where s.serves and r.paused_at is not null),
    sum(r.slots[array_position(r.queues, p_job.queue)]) filter (where s.serves and r.paused_at is null)
  into v_queue_workers, v_able, v_paused, v_slots
  from bugle.registrations r
    cross join lateral bugle.serves(r.commands, p_job.command, p_job.steps, p_job.step) s (serves)
  where r.stopped_at is null
    and r.lost_at is null
    and p_job.queue = any (r.queues);
  if v_able = 0 and v_paused is not null then
    return query
    select 'worker_paused',
      case cardinality(v_paused)
        when 1 then format('The only live worker that can run it, %s (%s on %s), is paused since %s.', r.id, r.name, r.host, bugle.describe_interval(now() - r.paused_at))
        else format('All %s live workers that can run it are paused: %s.', cardinality(v_paused), array_to_string(v_paused, ', '))
      end,
      format('select bugle.resume_worker(%s);', r.id), jsonb_build_object('queue', p_job.queue, 'paused_workers', v_paused)
    from bugle.registrations r
    where r.id = v_paused[1];
    return;
  end if;
  if v_able = 0 then
    return query
    select 'unserved',
      case v_queue_workers
        when 0 then format('No live worker serves its queue %s.', bugle.quoted(p_job.queue))
        when 1 then format('One live worker serves its queue %s, but it does not have %s.', bugle.quoted(p_job.queue), v_needs)
        else format('%s live workers serve its queue %s, but none has %s.', v_queue_workers, bugle.quoted(p_job.queue), v_needs)
      end,
      format('Start a worker with queue %s and %s: the job starts at once.', bugle.quoted(p_job.queue), v_needs),
      jsonb_strip_nulls(jsonb_build_object('queue', p_job.queue, 'command', p_job.command,
        'steps', bugle.remaining(p_job.steps, p_job.step), 'workers_of_queue', v_queue_workers));
    return;
  end if;
  if v_found then
    return;
  end if;

  return query
  select h.* from bugle.explain_held(p_job) h;
  if found then
    return;
  end if;

  select count(*) into v_ahead
  from (
    select
    from bugle.jobs_live j
    where j.state = 'ready'
      and j.fair_key is null
      and j.order_key is null
      and j.limit_key is null
      and j.queue = p_job.queue
      and (j.priority, j.id) < (p_job.priority, p_job.id)
    limit v_most) ahead;
  select count(*) into v_running
  from bugle.jobs_live j
  where j.state like 'running'
    and j.queue = p_job.queue;
  if v_running >= v_slots then
    return query
    select 'busy', format('All %s slots of queue %s are busy, and %s%s jobs are ahead of it.', v_slots, bugle.quoted(p_job.queue),
        v_ahead, case when v_ahead = v_most then ' or more' else '' end),
      'More workers, more slots, or a smaller priority: select bugle.set_priority(…).',
      jsonb_build_object('slots', v_slots, 'running', v_running, 'ahead', v_ahead);
  else
    return query
    select 'next', format('It is about to start: %s%s jobs are ahead of it, %s of %s slots are free.', v_ahead,
        case when v_ahead = v_most then ' or more' else '' end, v_slots - v_running, v_slots),
      'Nothing: look again.', jsonb_build_object('slots', v_slots, 'running', v_running, 'ahead', v_ahead);
  end if;
end
$$;
comment on function bugle.explain_ready is 'Why a ready job has not been started yet.';
