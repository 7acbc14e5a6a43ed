-- complete, for workers that tell where the rows lie (claimed_job.address): in one pass less, and without an index. They name jobs in
-- the order of their ids, in which rows are locked everywhere: sorting them here once more would cost a twentieth of it all. Only for jobs
-- that stand alone, while no command has a limit and nobody listens; and if but one of them is not where it was, because it has
-- reported progress, was fenced, or was ended before, then all of them by bugle.complete: it locks in id order, and half a batch
-- locked before it begins could make a deadlock.
create or replace function bugle.complete_at(
  p_worker bigint, p_nonce uuid, p_ids bigint[], p_claims bigint[], p_results jsonb[], p_addresses tid[])
returns setof bugle.verdict
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
set jit = off
as $$
declare
  v_day constant date := bugle.history_day('ended');
  v_is_held constant boolean := bugle.anything_held();
  v_found bigint;
  v_gone bigint;
begin
  if cardinality(p_addresses) = cardinality(p_ids) and not bugle.is_heard()
    and (not v_is_held or not exists (select from bugle.commands t where t.max_running is not null))
  then
    begin
      perform bugle.check_worker(p_worker, p_nonce);
      if (select s.keep_completed from bugle.settings s) then
        insert into bugle.jobs_ended (
          id, state, command, payload, queue, priority, run_at, deadline, timeout, max_attempts, retry_policy, headers,
          unique_key, idempotency_key, idempotency_ttl, order_key, limit_key, fair_key, steps, step, context,
          on_success, on_failure, parent, attempt, crashes, claim, worker, result, last_error, last_error_code,
          progress, progress_note, created_at, updated_at, first_started_at, started_at, finished_at, day)
        overriding system value
        select
          g.id, 'completed', g.command, g.payload, g.queue, g.priority, g.run_at, g.deadline, g.timeout, g.max_attempts,
          g.retry_policy, g.headers, g.unique_key, g.idempotency_key, g.idempotency_ttl, g.order_key, g.limit_key, g.fair_key,
          g.steps, g.step, g.context, g.on_success, g.on_failure, g.parent, g.attempt, g.crashes, g.claim, g.worker,
          f.result, g.last_error, g.last_error_code, g.progress, g.progress_note, g.created_at, now(), g.first_started_at,
          g.started_at, now(), v_day
        from unnest(p_ids, p_claims, p_results, p_addresses) f (id, claim, result, address)
          cross join lateral (
            select j.*
            from bugle.jobs_live j
            where j.ctid = f.address
              and j.id = f.id
              and j.claim = f.claim
              and j.worker = p_worker
              and j.state = 'running'
              and j.watched is null
            limit 1
            for update) g;
        get diagnostics v_found = row_count;
      else
        select count(*) into v_found
        from unnest(p_ids, p_claims, p_addresses) f (id, claim, address)
          cross join lateral (
            select
            from bugle.jobs_live j
            where j.ctid = f.address
              and j.id = f.id
              and j.claim = f.claim
              and j.worker = p_worker
              and j.state = 'running'
              and j.watched is null
            limit 1
            for update) g;
      end if;
      if v_found = cardinality(p_ids) then
        if v_is_held then
          perform bugle.release_at(p_addresses);
        end if;
        delete from bugle.jobs_live j
        where j.ctid = any (p_addresses);
        get diagnostics v_gone = row_count;
      end if;
      -- a row that moved while it was being locked is copied, and not where it was; one that was named twice is copied twice
      if v_gone is distinct from cardinality(p_ids) then
        raise exception using errcode = '09000';
      end if;
      return;
    exception
      when sqlstate '09000' then null;
    end;
  end if;
  return query
  select v.*
  from bugle.complete(p_worker, p_nonce, array(
    select (f.id, f.claim, f.result)::bugle.finished_job from unnest(p_ids, p_claims, p_results) f (id, claim, result))) v;
end
$$;
comment on function bugle.complete_at is 'As bugle.complete, for jobs whose addresses are known from their claim. Faster; jobs that have moved are found by their ids.';

-- bugle.release for these, which no command's limit counts.
create or replace function bugle.release_at(p_addresses tid[]) returns void
language plpgsql
as $$
begin
  perform bugle.ring(q.queue)
  from (
    select distinct j.queue, j.order_key is not null as is_ordered
    from unnest(p_addresses) a (address)
      cross join lateral (
        select l.queue, l.order_key from bugle.jobs_live l where l.ctid = a.address limit 1) j) q
  where q.is_ordered
    or exists (select from bugle.queues l where l.name = q.queue and l.is_limited);
end
$$;
comment on function bugle.release_at is 'Ring for whoever was held back by the jobs at these addresses.';
