-- operate: what operators do to jobs. Each change leaves a row in bugle.changes.
--
-- Every verb (86_verbs.sql) exists three times: for one id (raises an error if it is not allowed), for an array of ids
-- (returns a row for each) and, as …_where, for all jobs that match a filter. All of them call bugle.operate, which
-- decides. Jobs are locked in the order of their ids, as everywhere.

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
  p_worker bigint default null, p_schedule text default null, p_command text default null, p_step integer default null,
  p_policy text default null)
returns void
language sql
as $$
  insert into bugle.changes (
    verb, job, step, queue, worker, schedule, command, policy, from_state, to_state, who, note)
  values (
    p_verb, p_job, p_step, p_queue, p_worker, p_schedule, p_command, p_policy, p_from, p_to,
    bugle.acting_login(), left(p_note, 1000))
$$;
comment on function bugle.record_change is 'Record what an operator did.';

-- Changes of retry policies and schedules by plain SQL are recorded by triggers, like those by functions. The functions
-- name themselves in a setting; a session that sets it itself only changes the verb in its own record.
create or replace function bugle.set_verb(p_verb text, p_note text) returns void
language sql
as $$
  select set_config('bugle.verb', p_verb, true), set_config('bugle.note', coalesce(p_note, ''), true)
$$;
comment on function bugle.set_verb is
  'Set the verb and the note that bugle.record_policy and bugle.record_schedule store.';

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
    'It may have been removed, or deleted by retention.');
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
    perform bugle.refuse('JB001', '"p_priority" must be a number, not null',
      'Smaller values run first; 0 is the default.');
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

-- A job may be on its way from one table to the other while both are searched: so twice. The rows are locked in the
-- order of their ids, like those that bugle.lock_family locked before. Plans are generic: others would be made for the
-- ids, each of which would be looked at for each leaf of history.
create or replace function bugle.lock_for_verb(p_verb text, p_ids bigint[], p_run_at timestamptz, p_to text)
returns bugle.operation[]
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  v_allowed constant text[] := bugle.allowed_from(p_verb);
  v_found bugle.operation[] := '{}';
  v_left bigint[] := array(select distinct i.id from unnest(p_ids) i (id) order by i.id);
  v_wanted constant integer := cardinality(v_left);
begin
  for v_search in 1 .. 2 loop
    v_found := v_found || array(
      select (l.id, l.state, l.queue, null, null, case p_verb
          when 'cancel' then 'cancelled'
          when 'pause' then 'paused'
          when 'resume' then l.paused_from
          when 'remove' then 'removed'
          when 'reschedule' then case
            when l.state = 'paused' then 'paused'
            when p_run_at > now() then 'scheduled'
            else 'ready' end
          when 'set_priority' then l.state
          when 'set_state' then p_to
        end, null)::bugle.operation
      from (
        select j.id, j.state, j.queue, j.paused_from
        from bugle.jobs_live j
        where j.id = any (v_left)
        order by j.id
        for update) l);
    exit when cardinality(v_found) = v_wanted;
    if cardinality(v_found) > 0 then
      v_left := array(select i.id from unnest(v_left) i (id) except select f.id from unnest(v_found) f order by 1);
    end if;
    v_found := v_found || array(
      select (f.id, f.state, f.queue, f.command, f.unique_key,
        case p_verb when 'restart' then 'ready' when 'remove' then 'removed' else p_to end, null)::bugle.operation
      from (
        select j.id, j.state, j.queue, j.command, j.unique_key
        from bugle.jobs j
        where j.id = any (v_left)
          and bugle.is_final(j.state)
        order by j.id
        for update) f);
    exit when cardinality(v_found) = v_wanted;
    v_left := array(select i.id from unnest(v_left) i (id) except select f.id from unnest(v_found) f order by 1);
  end loop;
  return array(
    select (f.id, f.state, f.queue, f.command, f.unique_key, f.to_state, case
        when f.state <> all (v_allowed) then format('cannot %s job %s: it is %s', p_verb, f.id, f.state)
      end)::bugle.operation
    from unnest(v_found) f
    union all
    select (i.id, null, null, null, null, null, format('there is no job %s', i.id))::bugle.operation
    from unnest(v_left) i (id)
    where cardinality(v_found) < v_wanted);
end
$$;
comment on function bugle.lock_for_verb is
  'Lock jobs, live or finished, for an operator''s verb. Returns for each its state, what the verb makes of it, and '
  'why that is not possible.';

-- Of several jobs with the same unique_key, the first is moved. A key that another session takes at this moment is
-- found by the index: only then the jobs are moved one by one.
create or replace function bugle.revive(p_verb text, p_jobs bugle.operation[]) returns bugle.operation[]
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  v_jobs bugle.operation[] := p_jobs;
  v_ids bigint[];
  v_job bugle.operation;
  v_taken bigint[] := '{}';
begin
  if exists (select from unnest(p_jobs) f where f.unique_key is not null) then
    v_jobs := array(
      select (f.id, f.state, f.queue, f.command, f.unique_key, f.to_state, coalesce(f.reason, case when f.holder <> f.id
          then format('cannot %s job %s: job %s with the same unique_key is live', p_verb, f.id, f.holder)
        end))::bugle.operation
      from (
        select o.*, case when o.unique_key is not null and o.reason is null then coalesce(
            (select l.id from bugle.jobs_live l where l.command = o.command and l.unique_key = o.unique_key),
            min(o.id) filter (where o.reason is null) over (partition by o.command, o.unique_key))
          end as holder
        from unnest(p_jobs) o) f);
  end if;
  v_ids := array(select f.id from unnest(v_jobs) f where f.reason is null and bugle.is_final(f.state) order by f.id);
  begin
    perform bugle.move_to_live(v_ids);
    return v_jobs;
  exception when unique_violation then
    null;
  end;
  for v_job in
    select f.* from unnest(v_jobs) f where f.reason is null and bugle.is_final(f.state) order by f.id
  loop
    begin
      perform bugle.move_to_live(array[v_job.id]);
    exception when unique_violation then
      v_taken := v_taken || v_job.id;
    end;
  end loop;
  return array(
    select (f.id, f.state, f.queue, f.command, f.unique_key, f.to_state, case when f.id = any (v_taken)
        then format('cannot %s job %s: another job with the same unique_key came first', p_verb, f.id)
        else f.reason end)::bugle.operation
    from unnest(v_jobs) f);
end
$$;
comment on function bugle.revive is
  'Move finished jobs back into the live table. Returns them, each with the reason if that is not possible.';

-- Called before the jobs are deleted: those that wait for them, and subscribers, are told that they were cancelled.
create or replace function bugle.remove_jobs(p_jobs bugle.operation[]) returns void
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set jit = off
as $$
declare
  v_is_heard constant boolean := bugle.is_heard();
  v_live constant bigint[] := array(
    select r.id from unnest(p_jobs) r where not bugle.is_final(r.state) order by r.id);
  v_final constant bigint[] := array(
    select r.id from unnest(p_jobs) r where bugle.is_final(r.state) order by r.id);
  v_removed constant bugle.ended_job[] := array(
    select (j.id, 'cancelled', 'removed', j.command, j.queue, null, j.awaited, null, null, null,
      'it was removed')::bugle.ended_job
    from bugle.jobs_live j
    where j.id = any (v_live)
      and (j.awaited or v_is_heard)
    order by j.id);
begin
  delete from bugle.jobs_live j where j.id = any (v_live);
  if v_final <> '{}' then
    delete from bugle.jobs j where j.id = any (v_final) and bugle.is_final(j.state);
  end if;
  delete from bugle.step_records s where s.job = any (v_live || v_final);
  delete from bugle.dependencies d where d.job = any (v_live);
  if v_removed <> '{}' then
    perform bugle.after_end(v_removed, v_is_heard);
  end if;
end
$$;
comment on function bugle.remove_jobs is
  'Delete locked jobs that are not running, and follow up on those that were live.';

-- Put locked live jobs into states that are not final.
create or replace function bugle.put_into(
  p_verb text, p_jobs bugle.operation[], p_run_at timestamptz, p_priority integer)
returns void
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set jit = off
as $$
declare
  v_queues text[];
  v_next timestamptz;
begin
  with put as (
    update bugle.jobs_live j
    set state = o.to_state,
      paused_from = case
        when o.to_state <> 'paused' then null
        when j.paused_from = 'ready' and p_run_at > now() then 'scheduled'
        else coalesce(j.paused_from, j.state) end,
      run_at = coalesce(p_run_at, case
        when o.to_state = 'ready' and p_verb = 'set_state' then now() else j.run_at end),
      priority = coalesce(p_priority, j.priority),
      -- once an operator has moved it, it no longer waits for others
      outstanding = case when o.to_state in ('waiting', 'paused') then j.outstanding end,
      updated_at = now()
    from unnest(p_jobs) o
    where j.id = o.id
    returning j.queue, j.state, j.run_at
  )
  select array_agg(distinct p.queue) filter (where p.state = 'ready'),
    min(p.run_at) filter (where p.state in ('scheduled', 'retrying'))
  into v_queues, v_next
  from put p;
  if v_next is not null then
    perform bugle.expect(v_next);
  end if;
  perform bugle.ring(q.queue) from unnest(v_queues) q (queue);
end
$$;
comment on function bugle.put_into is 'Put live jobs that are locked into the states that a verb gives them.';

create or replace function bugle.start_again(p_jobs bugle.operation[], p_from_failed_step boolean)
returns bugle.operation[]
language plpgsql
as $$
declare
  v_ids constant bigint[] := array(select j.id from unnest(p_jobs) j);
  v_waiting bigint[];
begin
  if not p_from_failed_step then
    perform bugle.reset_steps(v_ids);
  end if;
  v_waiting := bugle.wait_again(v_ids);
  perform bugle.ring(q.queue) from (select distinct j.queue from unnest(p_jobs) j) q;
  if v_waiting = '{}' then
    return p_jobs;
  end if;
  return array(
    select (j.id, j.state, j.queue, j.command, j.unique_key, coalesce(w.state, j.to_state), j.reason)::bugle.operation
    from unnest(p_jobs) j
      left join (select i.id, 'waiting' as state from unnest(v_waiting) i (id)) w on w.id = j.id
    order by j.id);
end
$$;
comment on function bugle.start_again is
  'Let jobs that were moved back into the live table start from the beginning, or wait again for others.';

-- Sets of jobs all the way: 200,000 jobs are a handful of statements. One call for each job took 50 to 250 µs per job.
create or replace function bugle.operate(
  p_verb text, p_ids bigint[], p_note text, p_run_at timestamptz default null, p_priority integer default null,
  p_to text default null, p_from_failed_step boolean default false)
returns setof bugle.operated
language plpgsql
as $$
declare
  v_who constant text := bugle.acting_login();
  v_jobs bugle.operation[];
  v_done bugle.operation[];
begin
  perform bugle.check_verb(p_verb, p_run_at, p_priority, p_to);
  perform bugle.lock_family(p_ids);
  v_jobs := bugle.lock_for_verb(p_verb, p_ids, p_run_at, p_to);
  if p_verb <> 'remove'
    and exists (select from unnest(v_jobs) j where j.reason is null and bugle.is_final(j.state))
  then
    v_jobs := bugle.revive(p_verb, v_jobs);
  end if;
  v_done := array(select j from unnest(v_jobs) j where j.reason is null order by j.id);

  if v_done <> '{}' then
    perform bugle.release(array(select d.id from unnest(v_done) d where not bugle.is_final(d.state)));
    if p_verb = 'remove' then
      perform bugle.remove_jobs(v_done);
    elsif p_verb = 'restart' then
      v_done := bugle.start_again(v_done, p_from_failed_step);
    else
      perform bugle.announce(bugle.worker_channel(j.worker), format('cancel %s %s', j.id, j.claim))
      from unnest(v_done) d
        cross join lateral (
          select l.id, l.worker, l.claim from bugle.jobs_live l where l.id = d.id limit 1) j
      where d.state = 'running';
      -- a finished job that is overruled was moved to the live table, so that it is stored with the right day
      perform bugle.end_jobs(array(
        select bugle.ending(d.id, d.to_state,
          case when d.to_state <> 'completed' or bugle.is_final(d.state) then 'operator' end)
        from unnest(v_done) d
        -- seed: cancel_leaves_running_jobs
        where bugle.is_final(d.to_state)
        order by d.id));
      if exists (select from unnest(v_done) d where not bugle.is_final(d.to_state)) then
        perform bugle.put_into(p_verb, v_done, p_run_at, p_priority);
      end if;
    end if;
    insert into bugle.changes (verb, job, from_state, to_state, who, note)
    select p_verb, d.id, d.state, d.to_state, v_who, left(p_note, 1000)
    from unnest(v_done) d
    order by d.id;
  end if;
  return query
  select o.id, o.done, o.state, o.reason
  from (
    select d.id, true as done, d.to_state as state, null as reason from unnest(v_done) d
    union all
    select j.id, false, j.state, j.reason from unnest(v_jobs) j where j.reason is not null) o
  order by o.id;
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
  p_job bugle.jobs, p_queue text, p_command text, p_state text, p_since interval, p_ended_since interval,
  p_older_than interval, p_error_like text, p_code text, p_fingerprint text, p_reason text, p_worker bigint)
returns boolean
language sql stable
return (p_queue is null or (p_job).queue = p_queue)
  and (p_command is null or (p_job).command = p_command)
  and (p_state is null or (p_job).state = p_state)
  and (p_since is null or (p_job).created_at > now() - p_since)
  and (p_ended_since is null or (p_job).finished_at > now() - p_ended_since)
  and (p_older_than is null or (p_job).updated_at < now() - p_older_than)
  and (p_error_like is null or (p_job).last_error ilike
    case when strpos(p_error_like, '%') > 0 then p_error_like else '%' || p_error_like || '%' end)
  and (p_code is null or (p_job).last_error_code = p_code)
  and (p_reason is null or (p_job).reason = p_reason)
  and (p_worker is null or (p_job).worker = p_worker)
  and (p_fingerprint is null or bugle.fingerprint((p_job).last_error) = p_fingerprint);
comment on function bugle.matches is
  'Whether a job matches a filter: queue, command, state, when it was enqueued, ended or last changed, its last error '
  '(text, code, kind), its reason, its worker.';

create or replace function bugle.check_filter(
  p_verb text, p_state text, p_since interval, p_ended_since interval, p_older_than interval)
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
  end if;
  perform bugle.refuse('JB001', format('"%s" is beyond any calendar: %s', i.name, i.value),
    'For example interval ''1 hour''.')
  from (values ('p_since', p_since), ('p_ended_since', p_ended_since), ('p_older_than', p_older_than)) i (name, value)
  where i.value not between interval '-1000 years' and interval '1000 years';
end
$$;
comment on function bugle.check_filter is 'Reject a filter that no job could match.';

create or replace function bugle.count_matching(
  p_verb text, p_queue text default null, p_command text default null, p_state text default null,
  p_since interval default null, p_ended_since interval default null, p_older_than interval default null,
  p_error_like text default null, p_code text default null, p_fingerprint text default null,
  p_reason text default null, p_worker bigint default null)
returns table (state text, jobs bigint, last_id bigint)
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.check_filter(p_verb, p_state, p_since, p_ended_since, p_older_than);
  return query
  select j.state, count(*), max(j.id)
  from bugle.jobs j
  where j.state = any (bugle.allowed_from(p_verb))
    and bugle.matches(j, p_queue, p_command, p_state, p_since, p_ended_since, p_older_than, p_error_like, p_code,
      p_fingerprint, p_reason, p_worker)
  group by j.state
  order by j.state;
end
$$;
comment on function bugle.count_matching is
  'How many jobs match a filter and are in a state from which a verb is allowed, by state, with the last id of each.';

create or replace function bugle.jobs_matching(
  p_verb text, p_queue text default null, p_command text default null, p_state text default null,
  p_since interval default null, p_ended_since interval default null, p_older_than interval default null,
  p_error_like text default null, p_code text default null, p_fingerprint text default null,
  p_reason text default null, p_worker bigint default null, p_after bigint default 0, p_limit integer default 1000)
returns setof bigint
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.check_filter(p_verb, p_state, p_since, p_ended_since, p_older_than);
  return query
  select j.id
  from bugle.jobs j
  where j.state = any (bugle.allowed_from(p_verb))
    and j.id > p_after
    and bugle.matches(j, p_queue, p_command, p_state, p_since, p_ended_since, p_older_than, p_error_like, p_code,
      p_fingerprint, p_reason, p_worker)
  order by j.id
  limit p_limit;
end
$$;
comment on function bugle.jobs_matching is
  'Jobs that match a filter and are in a state from which a verb is allowed: the oldest p_limit with ids above '
  'p_after.';

-- One of the filters must be given. The oldest jobs first, as in bugle.jobs_matching.
create or replace function bugle.operate_matching(
  p_verb text, p_queue text, p_command text, p_state text, p_since interval, p_ended_since interval,
  p_older_than interval, p_error_like text, p_code text, p_fingerprint text, p_reason text, p_worker bigint,
  p_limit integer, p_note text, p_run_at timestamptz default null, p_priority integer default null,
  p_to text default null, p_from_failed_step boolean default false)
returns bigint
language plpgsql
as $$
declare
  v_ids bigint[];
  v_done bigint;
  v_left bigint;
begin
  perform bugle.check_verb(p_verb, p_run_at, p_priority, p_to);
  if num_nonnulls(p_queue, p_command, p_state, p_since, p_ended_since, p_older_than, p_error_like, p_code,
    p_fingerprint, p_reason, p_worker) = 0
  then
    perform bugle.refuse('JB001', format('%s without a filter would apply to every job', p_verb),
      'Give at least one of p_queue, p_command, p_state, p_since, p_ended_since, p_older_than, p_error_like, p_code, '
      'p_fingerprint, p_reason, p_worker.');
  elsif p_limit < 0 then
    perform bugle.refuse('JB001', format('"p_limit" must not be negative: %s', p_limit),
      'Null means all that match.');
  end if;
  v_ids := array(
    select m.id
    from bugle.jobs_matching(p_verb, p_queue, p_command, p_state, p_since, p_ended_since, p_older_than, p_error_like,
      p_code, p_fingerprint, p_reason, p_worker, p_limit => p_limit) m (id));
  if cardinality(v_ids) = p_limit then
    v_left := (
      select sum(c.jobs)
      from bugle.count_matching(p_verb, p_queue, p_command, p_state, p_since, p_ended_since, p_older_than,
        p_error_like, p_code, p_fingerprint, p_reason, p_worker) c) - p_limit;
  end if;
  v_done := (
    select count(*) filter (where o.done)
    from bugle.operate(p_verb, v_ids, p_note, p_run_at, p_priority, p_to, p_from_failed_step) o);
  if v_left > 0 then
    -- these verbs leave jobs matching that they were done for: the same ones would come again
    if p_verb in ('reschedule', 'set_priority', 'set_state') then
      raise notice '% more jobs match: give p_limit => null for all at once, or a narrower filter', v_left;
    else
      raise notice '% more jobs match: repeat the call, or give p_limit => null for all at once', v_left;
    end if;
  end if;
  return v_done;
end
$$;
comment on function bugle.operate_matching is
  'Apply an operator''s verb to the jobs that match a filter. Returns how many, and says how many were left.';
