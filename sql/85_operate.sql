-- operate: what operators do to jobs. Each change leaves a row in bugle.changes.
--
-- Every verb (86_verbs.sql) exists three times: for one id (raises an error if it is not allowed), for an array of ids
-- (returns a row for each) and, as …_where, for all jobs that match a filter. All of them call bugle.operate, which
-- decides. Jobs are locked one after another in the order of their ids, as everywhere.

-- A site behind a proxy logs in once, and acts for each person by SET ROLE. Only a role that may log in counts: a group
-- is not a person, and a login that takes on one of its groups is still itself.
create or replace function bugle.acting_login() returns text
language sql stable
as $$
  select coalesce(
    (
      select r.rolname::text
      from pg_catalog.pg_roles r
      where r.rolname = current_setting('role')
        and r.rolcanlogin),
    session_user::text)
$$;
comment on function bugle.acting_login is
  'Who acts: the login of this session, or another login whose role it was granted and has taken on.';

create or replace function bugle.record_change(
  p_verb text, p_job bigint, p_from text, p_to text, p_note text, p_queue text default null,
  p_worker bigint default null, p_schedule text default null, p_command text default null, p_step integer default null)
returns void
language sql
as $$
  insert into bugle.changes (
    verb, job, step, queue, worker, schedule, command, from_state, to_state, who, note)
  values (
    p_verb, p_job, p_step, p_queue, p_worker, p_schedule, p_command, p_from, p_to, bugle.acting_login(),
    left(p_note, 1000))
$$;
comment on function bugle.record_change is 'Record what an operator did.';

-- From which states a verb is allowed; null if it is not a verb.
create or replace function bugle.allowed_from(p_verb text) returns text[]
language sql immutable parallel safe
return case p_verb
  when 'cancel' then array['scheduled', 'ready', 'running', 'retrying', 'paused', 'waiting']
  when 'pause' then array['scheduled', 'ready', 'retrying', 'waiting']
  when 'resume' then array['paused']
  -- seed: completed_jobs_can_be_restarted
  when 'restart' then array['failed', 'cancelled']
  when 'remove' then array['scheduled', 'ready', 'retrying', 'paused', 'waiting', 'completed', 'failed', 'cancelled']
  when 'reschedule' then array['scheduled', 'ready', 'retrying', 'paused']
  when 'set_priority' then array['scheduled', 'ready', 'retrying', 'paused', 'waiting']
  when 'set_state' then array['scheduled', 'ready', 'retrying', 'paused', 'waiting', 'failed', 'cancelled']
end;
comment on function bugle.allowed_from is 'The states from which an operator''s verb is allowed.';

create or replace function bugle.refuse_unknown_job(p_id bigint) returns void
language plpgsql
as $$
begin
  perform bugle.refuse('JB030', format('there is no job %s', p_id),
    'It may have been removed, or dropped with its day of history.');
end
$$;
comment on function bugle.refuse_unknown_job is 'Raise the error for an id that no job has.';

create or replace function bugle.lock_job(p_id bigint, p_may_be_missing boolean default false)
returns bugle.jobs
language plpgsql
as $$
declare
  v_job bugle.jobs;
begin
  -- twice: it may be on its way from one table to the other while both are searched
  for v_search in 1 .. 2 loop
    select j.* into v_job from bugle.jobs_live j where j.id = p_id for update;
    exit when found;
    select j.* into v_job from bugle.jobs j where j.id = p_id and bugle.is_final(j.state) for update;
    exit when found;
  end loop;
  if v_job.id is null and not p_may_be_missing then
    perform bugle.refuse_unknown_job(p_id);
  end if;
  return v_job;
end
$$;
comment on function bugle.lock_job is
  'Lock a job, live or finished. If there is none: null if it may be missing, otherwise an error.';

-- The values that some verbs take.
create or replace function bugle.check_verb(p_verb text, p_run_at timestamptz, p_priority integer, p_to text)
returns void
language plpgsql
as $$
begin
  if p_verb = 'reschedule' and (p_run_at is null or not isfinite(p_run_at)) then
    perform bugle.refuse('JB001',
      format('"p_run_at" must be a finite time, not %s', coalesce(bugle.quoted(p_run_at::text), 'null')),
      'For example now() + interval ''10 minutes''.');
  elsif p_verb = 'set_priority' and p_priority is null then
    perform bugle.refuse('JB001', '"p_priority" must be a number, not null', 'Smaller runs sooner; 0 is the default.');
  elsif p_verb = 'set_state' and coalesce(p_to, '') not in (
    'scheduled', 'ready', 'retrying', 'paused', 'completed', 'failed', 'cancelled')
  then
    perform bugle.refuse('JB001',
      format('"p_to" must be a state a job can be put into, not %s', coalesce(bugle.quoted(p_to), 'null')),
      'One of: scheduled, ready, retrying, paused, completed, failed, cancelled.');
  end if;
end
$$;
comment on function bugle.check_verb is 'Reject a value that a verb cannot use.';

create or replace function bugle.revive(p_verb text, p_job bugle.jobs) returns text
language plpgsql
as $$
declare
  v_holder bigint;
begin
  select l.id into v_holder
  from bugle.jobs_live l
  where l.command = p_job.command
    and l.unique_key = p_job.unique_key;
  if found then
    return format('cannot %s job %s: job %s with the same unique_key is live', p_verb, p_job.id, v_holder);
  end if;
  perform bugle.move_to_live(p_job.id);
  return null;
exception when unique_violation then
  return format('cannot %s job %s: another job with the same unique_key came first', p_verb, p_job.id);
end
$$;
comment on function bugle.revive is 'Move a finished job back into the live table. Returns why that is not possible.';

create or replace function bugle.operate(
  p_verb text, p_ids bigint[], p_note text, p_run_at timestamptz default null, p_priority integer default null,
  p_to text default null, p_from_failed_step boolean default false)
returns setof bugle.operated
language plpgsql
as $$
declare
  v_id bigint;
  v_job bugle.jobs;
  v_why text;
  v_to text;
  v_queues text[] := '{}';
  v_endings bugle.ending[] := '{}';
  v_removed bugle.ended_job[] := '{}';
begin
  perform bugle.check_verb(p_verb, p_run_at, p_priority, p_to);
  perform bugle.lock_family(p_ids);
  for v_id in
    select distinct i.id from unnest(p_ids) i (id) order by i.id
  loop
    v_job := bugle.lock_job(v_id, p_may_be_missing => true);
    v_why := case
      when v_job.id is null then format('there is no job %s', v_id)
      when v_job.state <> all (bugle.allowed_from(p_verb)) then
        format('cannot %s job %s: it is %s', p_verb, v_id, v_job.state)
      when bugle.is_final(v_job.state) and p_verb <> 'remove' then bugle.revive(p_verb, v_job)
    end;
    if v_why is not null then
      return next (v_id, false, v_job.state, v_why)::bugle.operated;
      continue;
    end if;

    v_to := case p_verb
      when 'cancel' then 'cancelled'
      when 'pause' then 'paused'
      when 'resume' then v_job.paused_from
      when 'restart' then coalesce(bugle.wait_again(v_id), 'ready')
      when 'remove' then 'removed'
      when 'reschedule' then case
        when v_job.state = 'paused' then 'paused'
        when p_run_at > now() then 'scheduled'
        else 'ready' end
      when 'set_priority' then v_job.state
      when 'set_state' then p_to
    end;
    if not bugle.is_final(v_job.state) then
      perform bugle.release(array[v_id]);
    end if;
    if p_verb = 'remove' then
      delete from bugle.jobs j where j.id = v_id and j.state = v_job.state;
      delete from bugle.step_records r where r.job = v_id;
      if not bugle.is_final(v_job.state) then
        delete from bugle.dependencies d where d.job = v_id;
        -- jobs that wait for it are told that it was cancelled
        v_removed := v_removed || (v_id, 'cancelled', 'removed', v_job.command, v_job.queue, null, v_job.awaited,
          null, null, null, 'it was removed')::bugle.ended_job;
      end if;
    -- seed: cancel_leaves_running_jobs
    elsif bugle.is_final(v_to) then
      -- a finished job that is overruled was moved to the live table, so that it is stored with the right day
      v_endings := v_endings || (v_id, v_to,
        case when v_to <> 'completed' or bugle.is_final(v_job.state) then 'operator' end,
        null, null, null)::bugle.ending;
      if v_job.state = 'running' then
        perform bugle.announce(bugle.worker_channel(v_job.worker), format('cancel %s %s', v_id, v_job.claim));
      end if;
    else
      if p_verb = 'restart' and not p_from_failed_step then
        perform bugle.reset_steps(v_id);
      end if;
      update bugle.jobs_live j
      set state = v_to,
        paused_from = case
          when v_to <> 'paused' then null
          when j.paused_from = 'ready' and p_run_at > now() then 'scheduled'
          else coalesce(j.paused_from, j.state) end,
        run_at = coalesce(p_run_at, case when v_to = 'ready' and p_verb = 'set_state' then now() else j.run_at end),
        priority = coalesce(p_priority, j.priority),
        -- once an operator has moved it, it no longer waits for others
        outstanding = case when v_to in ('waiting', 'paused') then j.outstanding end,
        updated_at = now()
      where j.id = v_id;
      if v_to = 'ready' then
        v_queues := v_queues || v_job.queue;
      elsif v_to in ('scheduled', 'retrying') then
        perform bugle.expect(coalesce(p_run_at, v_job.run_at));
      end if;
    end if;
    perform bugle.record_change(p_verb, v_id, v_job.state, v_to, p_note);
    return next (v_id, true, v_to, null)::bugle.operated;
  end loop;
  perform bugle.end_jobs(v_endings);
  if v_removed <> '{}' then
    perform bugle.after_end(v_removed, bugle.is_heard());
  end if;
  perform bugle.ring(q.queue) from (select distinct unnest(v_queues) as queue) q;
end
$$;
comment on function bugle.operate is
  'Apply an operator''s verb to jobs. Returns for each: done, its state now, or why not.';

create or replace function bugle.operate_one(
  p_verb text, p_id bigint, p_note text, p_run_at timestamptz default null, p_priority integer default null,
  p_to text default null, p_from_failed_step boolean default false, p_family boolean default false)
returns text
language plpgsql
as $$
declare
  v_answer bugle.operated;
begin
  if p_family then
    perform o.id
    from bugle.operate(p_verb, bugle.family(p_id), p_note, p_run_at, p_priority, p_to, p_from_failed_step) o
    where o.done;
    if found then
      return (select j.state from bugle.job(p_id) j);
    end if;
  end if;
  v_answer := bugle.operate(p_verb, array[p_id], p_note, p_run_at, p_priority, p_to, p_from_failed_step);
  if v_answer.done then
    return v_answer.state;
  end if;
  if v_answer.state is null then
    perform bugle.refuse_unknown_job(p_id);
  end if;
  perform bugle.refuse('JB031', v_answer.reason,
    format('%s is allowed from: %s.', p_verb, array_to_string(bugle.allowed_from(p_verb), ', ')));
end
$$;
comment on function bugle.operate_one is
  'Apply an operator''s verb to one job, or to those of its family that allow it; or raise an error that says why not.';

-- The filter of lists and of verbs, under the same names in SQL, in the shell and in the API. Null matches all jobs. An
-- expression, so that the planner sees the columns.
create or replace function bugle.matches(
  p_job bugle.jobs, p_queue text, p_command text, p_state text, p_since interval, p_older_than interval,
  p_error_like text, p_worker bigint)
returns boolean
language sql stable
return (p_queue is null or (p_job).queue = p_queue)
  and (p_command is null or (p_job).command = p_command)
  and (p_state is null or (p_job).state = p_state)
  and (p_since is null or (p_job).created_at > now() - p_since)
  and (p_older_than is null or (p_job).updated_at < now() - p_older_than)
  and (p_error_like is null or (p_job).last_error ilike
    case when strpos(p_error_like, '%') > 0 then p_error_like else '%' || p_error_like || '%' end)
  and (p_worker is null or (p_job).worker = p_worker);
comment on function bugle.matches is
  'Whether a job matches a filter: queue, command, state, age (p_since, p_older_than), text of its last error (with %, '
  'a pattern), worker.';

create or replace function bugle.check_filter(
  p_verb text, p_state text, p_since interval, p_older_than interval)
returns void
language plpgsql
as $$
declare
  v_allowed constant text[] := bugle.allowed_from(p_verb);
begin
  if v_allowed is null then
    perform bugle.refuse('JB001', format('"p_verb" is not a verb: %s', coalesce(bugle.quoted(p_verb), 'null')),
      'One of: cancel, pause, resume, restart, remove, reschedule, set_priority, set_state.');
  elsif p_state <> all (v_allowed) then
    perform bugle.refuse('JB001', format('%s is not allowed from "p_state" %s', p_verb, bugle.quoted(p_state)),
      format('It is allowed from: %s.', array_to_string(v_allowed, ', ')));
  elsif p_since not between interval '-1000 years' and interval '1000 years'
    or p_older_than not between interval '-1000 years' and interval '1000 years'
  then
    perform bugle.refuse('JB001', format('"%s" is beyond any calendar: %s',
        case when p_older_than not between interval '-1000 years' and interval '1000 years' then 'p_older_than'
          else 'p_since' end, coalesce(p_older_than, p_since)),
      'For example interval ''1 hour''.');
  end if;
end
$$;
comment on function bugle.check_filter is 'Reject a filter that no job could match.';

create or replace function bugle.count_matching(
  p_verb text, p_queue text default null, p_command text default null, p_state text default null,
  p_since interval default null, p_older_than interval default null, p_error_like text default null,
  p_worker bigint default null)
returns table (state text, jobs bigint, last_id bigint)
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.check_filter(p_verb, p_state, p_since, p_older_than);
  return query
  select j.state, count(*), max(j.id)
  from bugle.jobs j
  where j.state = any (bugle.allowed_from(p_verb))
    and bugle.matches(j, p_queue, p_command, p_state, p_since, p_older_than, p_error_like, p_worker)
  group by j.state
  order by j.state;
end
$$;
comment on function bugle.count_matching is
  'How many jobs match a filter and are in a state from which a verb is allowed, by state, with the last id of each.';

create or replace function bugle.jobs_matching(
  p_verb text, p_queue text default null, p_command text default null, p_state text default null,
  p_since interval default null, p_older_than interval default null, p_error_like text default null,
  p_worker bigint default null, p_after bigint default 0, p_limit integer default 1000)
returns setof bigint
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.check_filter(p_verb, p_state, p_since, p_older_than);
  return query
  select j.id
  from bugle.jobs j
  where j.state = any (bugle.allowed_from(p_verb))
    and j.id > p_after
    and bugle.matches(j, p_queue, p_command, p_state, p_since, p_older_than, p_error_like, p_worker)
  order by j.id
  limit p_limit;
end
$$;
comment on function bugle.jobs_matching is
  'Jobs that match a filter and are in a state from which a verb is allowed: the oldest p_limit with ids above '
  'p_after.';

-- One of the filters must be given. The oldest jobs first, as in bugle.jobs_matching.
create or replace function bugle.operate_matching(
  p_verb text, p_queue text, p_command text, p_state text, p_since interval, p_older_than interval,
  p_error_like text, p_worker bigint, p_limit integer, p_note text, p_run_at timestamptz default null,
  p_priority integer default null, p_to text default null, p_from_failed_step boolean default false)
returns bigint
language plpgsql
as $$
declare
  v_ids bigint[];
  v_done bigint;
  v_left bigint;
begin
  perform bugle.check_verb(p_verb, p_run_at, p_priority, p_to);
  if num_nonnulls(p_queue, p_command, p_state, p_since, p_older_than, p_error_like, p_worker) = 0 then
    perform bugle.refuse('JB001', format('%s without a filter would apply to every job', p_verb),
      'Give at least one of p_queue, p_command, p_state, p_since, p_older_than, p_error_like, p_worker.');
  elsif p_limit < 0 then
    perform bugle.refuse('JB001', format('"p_limit" must not be negative: %s', p_limit),
      'Null means all that match.');
  end if;
  v_ids := array(
    select m.id
    from bugle.jobs_matching(p_verb, p_queue, p_command, p_state, p_since, p_older_than, p_error_like, p_worker,
      p_limit => p_limit) m (id));
  if cardinality(v_ids) = p_limit then
    v_left := (
      select sum(c.jobs)
      from bugle.count_matching(p_verb, p_queue, p_command, p_state, p_since, p_older_than, p_error_like, p_worker) c)
      - p_limit;
  end if;
  v_done := (
    select count(*) filter (where o.done)
    from bugle.operate(p_verb, v_ids, p_note, p_run_at, p_priority, p_to, p_from_failed_step) o);
  if v_left > 0 then
    raise notice '% more jobs match: repeat the call, or give p_limit => null for all at once', v_left;
  end if;
  return v_done;
end
$$;
comment on function bugle.operate_matching is
  'Apply an operator''s verb to the jobs that match a filter. Returns how many, and says how many were left.';
