-- dependants: what happens when a job has ended: jobs that wait for it start or fail, follow-up commands are enqueued.
-- Called by every outcome, in its transaction, for jobs that are awaited, or if a session subscribed to events.
--
-- A job is awaited if another one waits for it (bugle.dependencies) or a command follows it (on_success, on_failure).
-- For all other jobs the only cost is reading this column.
--
-- Lock order, so that no two outcomes deadlock: an outcome first locks the jobs that end, then, here, all jobs it
-- touches, in one statement and in the order of their ids. Those wait for others, and no outcome locks such jobs first.
-- The jobs that fail because one they needed has failed are all found before any is locked: going from one to the next
-- would lock in the order of the graph, and take one statement for each link of a long chain of dependencies.

create or replace function bugle.after_end(p_ended bugle.ended_job[], p_is_heard boolean) returns void
language plpgsql
as $$
declare
  v_ended bugle.ended_job[] := p_ended;
begin
  if exists (select from unnest(p_ended) e where e.awaited) then
    v_ended := p_ended || bugle.resolve_dependants(array(select e from unnest(p_ended) e where e.awaited));
    perform bugle.enqueue_follow_ups(v_ended);
  end if;
  if p_is_heard then
    perform bugle.publish(v_ended);
  end if;
end
$$;
comment on function bugle.after_end is
  'Follow up on jobs that have ended: start or fail those that need them, enqueue follow-ups, notify subscribers.';

create or replace function bugle.dependency_error(p_id bigint) returns text
language sql immutable parallel safe
return format('it needed job %s, which did not complete', p_id);
comment on function bugle.dependency_error is 'The error of a job that fails because one it needed did not complete.';

-- "offset 0" makes the planner look up each by index, whatever the statistics are.
create or replace function bugle.dependants_of(p_ids bigint[]) returns bigint[]
language plpgsql stable
as $$
begin
  return array(
    select distinct x.job
    from unnest(p_ids) i (id)
      cross join lateral (
        select d.job from bugle.dependencies d where d.needs = i.id and d.state is null offset 0) x);
end
$$;
comment on function bugle.dependants_of is 'The jobs that wait for one of these.';

create or replace function bugle.failing_dependants(p_ids bigint[]) returns bigint[]
language sql stable
as $$
  with recursive failing (job, is_dependant) as (
    select i.id, false
    from unnest(p_ids) i (id)
    union
    select x.job, true
    from failing f
      cross join lateral (
        select d.job
        from bugle.dependencies d
        where d.needs = f.job
          and d.on_failure = 'fail'
          and d.state is null
          and exists (select from bugle.jobs_live j where j.id = d.job and j.outstanding is not null)
        offset 0) x
  )
  select array(select f.job from failing f where f.is_dependant)
$$;
comment on function bugle.failing_dependants is
  'The jobs that fail because these did not complete: all that wait for them, directly or not, except those with '
  'on_failure = run.';

-- Each waiting job is updated once per batch, however many of its children are in it.
create or replace function bugle.resolve_dependants(p_ended bugle.ended_job[]) returns bugle.ended_job[]
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set enable_material = off set plan_cache_mode = force_generic_plan set jit = off
as $$
declare
  v_ids constant bigint[] := array(select e.id from unnest(p_ended) e);
  -- seed: failure_counts_as_success
  v_failed constant bigint[] := array(select e.id from unnest(p_ended) e where e.state <> 'completed');
  v_failing bigint[] := '{}';
  v_touched bigint[] := '{}';
  v_locked bigint[] := '{}';
  v_found record;
  v_moved bugle.ended_job[];
  v_queues text[];
  v_next timestamptz;
begin
  -- Before the locks were taken, a job may have become a dependant of one of these, or stopped being one: check again.
  loop
    if v_failed <> '{}' then
      v_failing := bugle.failing_dependants(v_failed);
    end if;
    v_touched := bugle.dependants_of(v_ids || v_failing);
    exit when not exists (select t.id from unnest(v_touched) t (id) except select l.id from unnest(v_locked) l (id));
    perform l.id
    from (
      select j.id from bugle.jobs_live j where j.id = any (v_touched) order by j.id for update) l;
    v_locked := v_touched;
    exit when v_failed = '{}';
  end loop;

  if v_failing <> '{}' then
    select l.* into v_found
    from bugle.locate(array(
      select bugle.ending(n.job, 'failed', 'dependency_failed', bugle.dependency_error(n.needs), 'dependency_failed')
      from (
        select x.job, min(f.id) as needs
        from unnest(v_failed || v_failing) f (id)
          cross join lateral (
            select d.job
            from bugle.dependencies d
            where d.needs = f.id
              and d.on_failure = 'fail'
              and d.state is null
            offset 0) x
        group by x.job) n
      where exists (select from bugle.jobs_live j where j.id = n.job and j.outstanding is not null))) l;
    perform bugle.release(v_failing);
    v_moved := bugle.ended_jobs(v_found.endings, true);
    perform bugle.move_to_history(v_found.endings);
  end if;

  -- A restarted job ends a second time: its newest outcome is stored, but nothing is counted down twice.
  with ended as (
    update bugle.dependencies d
    set state = s.state,
      reason = s.reason,
      result = s.result,
      error = s.error,
      ended_at = now()
    from (
      select e.state, e.reason, e.result, e.error, x.ctid as address, x.is_open
      from unnest(p_ended || v_moved) e
        cross join lateral (
          select o.ctid, o.state is null as is_open from bugle.dependencies o where o.needs = e.id offset 0) x) s
    where d.ctid = s.address
    returning d.job, s.is_open
  ), counted as (
    update bugle.jobs_live j
    -- seed: first_completion_releases_all
    set outstanding = nullif(j.outstanding - s.count, 0),
      state = case
        when j.outstanding > s.count or j.state = 'paused' then j.state
        when j.run_at > now() then 'scheduled'
        else 'ready' end,
      paused_from = case
        when j.outstanding > s.count or j.state <> 'paused' then j.paused_from
        when j.run_at > now() then 'scheduled'
        else 'ready' end,
      -- a job that spawned continues the same attempt
      attempt = case when j.outstanding > s.count then j.attempt else greatest(j.attempt - 1, 0) end,
      updated_at = now()
    from (
      select c.count, x.ctid as address
      from (select e.job, count(*)::integer as count from ended e where e.is_open group by e.job) c
        cross join lateral (
          select l.ctid from bugle.jobs_live l where l.id = c.job and l.outstanding is not null limit 1) x) s
    where j.ctid = s.address
    returning j.state, j.queue, j.run_at
  )
  select array_agg(distinct c.queue) filter (where c.state = 'ready'),
    min(c.run_at) filter (where c.state = 'scheduled')
  into v_queues, v_next
  from counted c;
  perform bugle.ring(q.queue) from unnest(v_queues) q (queue);
  if v_next is not null then
    perform bugle.expect(v_next);
  end if;
  return v_moved;
end
$$;
comment on function bugle.resolve_dependants is
  'Count down the jobs that wait for these, start those that wait for nothing more, fail those that needed one that '
  'did not complete. Returns those that failed.';

-- A result that would not fit is left out.
create or replace function bugle.follow_up_payload(p_ended bugle.ended_job) returns jsonb
language plpgsql stable
as $$
declare
  v_payload jsonb;
begin
  v_payload := jsonb_build_object('job', p_ended.id, 'state', p_ended.state, 'reason', p_ended.reason,
    'command', p_ended.command, 'queue', p_ended.queue, 'result', p_ended.result, 'error', p_ended.error);
  if pg_column_size(v_payload) > 4096
    and octet_length(v_payload::text) > (select s.max_payload_bytes from bugle.settings s)
  then
    v_payload := v_payload || '{"result": null, "result_left_out": true}';
  end if;
  return v_payload;
end
$$;
comment on function bugle.follow_up_payload is 'The payload of a job that follows another.';

create or replace function bugle.follow_up_of(p_ended bugle.ended_job) returns text
language sql immutable parallel safe
return case p_ended.state when 'completed' then p_ended.on_success when 'failed' then p_ended.on_failure end;
comment on function bugle.follow_up_of is 'The command that follows a job that ended like this. Null: none.';

-- Its queue is the one of its command's template, if that has one, otherwise the queue of the job it follows.
create or replace function bugle.enqueue_follow_up(p_ended bugle.ended_job) returns void
language sql
as $$
  insert into bugle.jobs (command, payload, queue, headers)
  select bugle.follow_up_of(p_ended), bugle.follow_up_payload(p_ended),
    case
      when exists (select from bugle.commands c where c.name = bugle.follow_up_of(p_ended) and c.queue is not null)
      then 'default'
      else p_ended.queue
    end,
    p_ended.headers
  on conflict do nothing
$$;
comment on function bugle.enqueue_follow_up is 'Enqueue the command that follows a job.';

-- A follow-up that is rejected must not undo the outcome of the job it follows: it is recorded in bugle.changes. All of
-- them are tried at once first, as most are accepted.
create or replace function bugle.enqueue_follow_ups(p_ended bugle.ended_job[]) returns void
language plpgsql
as $$
declare
  v_due constant bugle.ended_job[] := array(
    select e from unnest(p_ended) e where e.awaited and bugle.follow_up_of(e) is not null);
  v_ended bugle.ended_job;
begin
  if v_due = '{}' then
    return;
  end if;
  -- this runs with the owner's rights: the caller must not be able to switch the checks off
  perform set_config('bugle.skip_checks', '', true);
  begin
    perform bugle.enqueue_follow_up(e) from unnest(v_due) e;
    return;
  exception when others then
    if left(sqlstate, 2) in ('40', '53', '55', '57', '58') then
      raise;
    end if;
  end;
  foreach v_ended in array v_due loop
    begin
      perform bugle.enqueue_follow_up(v_ended);
    exception when others then
      if left(sqlstate, 2) in ('40', '53', '55', '57', '58') then
        raise;
      end if;
      perform bugle.record_change('follow_up', v_ended.id, v_ended.state, 'refused', sqlerrm);
    end;
  end loop;
end
$$;
comment on function bugle.enqueue_follow_ups is
  'Enqueue what follows these jobs. What is rejected is recorded in bugle.changes.';

create or replace function bugle.wait_again(p_ids bigint[]) returns bigint[]
language plpgsql set enable_seqscan = off set jit = off
as $$
declare
  v_needs bigint[];
  v_waiting bigint[];
begin
  v_needs := array(
    select distinct x.needs
    from unnest(p_ids) i (id)
      cross join lateral (
        select d.needs
        from bugle.dependencies d
        where d.job = i.id
          and exists (select from bugle.jobs_live j where j.id = d.needs)
        offset 0) x);
  if v_needs = '{}' then
    return '{}';
  end if;
  v_needs := array(select n.id from bugle.lock_dependencies(v_needs) n where n.state is null);
  with open as (
    update bugle.dependencies d
    set state = null, reason = null, result = null, error = null, ended_at = null
    where d.job in (select i.id from unnest(p_ids) i (id))
      and d.needs in (select n.id from unnest(v_needs) n (id))
    returning d.job
  ), waiting as (
    update bugle.jobs_live j
    set state = 'waiting',
      outstanding = o.count,
      updated_at = now()
    from (select o.job, count(*)::integer as count from open o group by o.job) o
    where j.id = o.job
    returning j.id
  )
  select array_agg(w.id) into v_waiting from waiting w;
  return coalesce(v_waiting, '{}');
end
$$;
comment on function bugle.wait_again is
  'Let restarted jobs wait for those of their dependencies and children that are live. Returns which wait.';

-- Locks for operators, for expiry, and for jobs that are enqueued after others. An outcome locks the jobs that end, in
-- the order of ids, and then the jobs that wait for them, in the order of ids; everything else that locks both kinds
-- uses this order too. But a job may start or stop waiting while this session waits for a lock. So locks on the second
-- kind are tried, all or none, while only the first kind is held.
create or replace function bugle.lock_jobs(p_ids bigint[]) returns void
language plpgsql set enable_seqscan = off set jit = off
as $$
begin
  perform l.id
  from (
    select j.id from bugle.jobs_live j where j.id = any (p_ids) and j.outstanding is null order by j.id for update) l;
  for v_try in 1 .. 200 loop
    begin
      perform l.id
      from (
        select j.id from bugle.jobs_live j where j.id = any (p_ids) order by j.id for update nowait) l;
      return;
    exception when lock_not_available then
      perform pg_sleep(0.001 + 0.004 * random());
    end;
  end loop;
  -- another session holds one of them for long: wait for it
  perform l.id
  from (
    select j.id from bugle.jobs_live j where j.id = any (p_ids) order by j.id for update) l;
end
$$;
comment on function bugle.lock_jobs is
  'Lock live jobs: first those that wait for no other, then the rest, all or none.';

create or replace function bugle.lock_family(p_ids bigint[]) returns void
language plpgsql set enable_seqscan = off set jit = off
as $$
declare
  v_ends constant bigint[] := p_ids || bugle.failing_dependants(p_ids);
begin
  perform bugle.lock_jobs(v_ends || bugle.dependants_of(v_ends) || array(
    select x.needs
    from unnest(p_ids) i (id)
      cross join lateral (select d.needs from bugle.dependencies d where d.job = i.id offset 0) x));
end
$$;
comment on function bugle.lock_family is
  'Lock live jobs, those that wait for them, and those they wait for.';
