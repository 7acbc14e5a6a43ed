-- Who may do what. Nobody but the owner has a right on a table beyond these; functions do the rest with the owner's.

do $$
declare
  v_role text;
begin
  foreach v_role in array array['bugle_enqueuer', 'bugle_worker', 'bugle_viewer', 'bugle_operator'] loop
    if exists (select from pg_roles r where r.rolname = v_role) then
      continue;
    end if;
    begin
      execute format('create role %I nologin', v_role);
    exception
      when duplicate_object or unique_violation then
        null; -- another database of this server is being migrated at this moment
      when insufficient_privilege then
        raise notice 'role % was not created: % may not create roles. Create it and run "bugle migrate" again, or use the owner.',
          v_role, current_user;
    end;
  end loop;
end
$$;

revoke all on all functions in schema bugle from public;

do $$
begin
  if exists (select from pg_roles r where r.rolname = 'bugle_enqueuer') then
    grant usage on schema bugle to bugle_enqueuer;
    -- job_ids for currval and lastval, by which some drivers learn the id
    grant select on sequence bugle.job_ids, bugle.templates to bugle_enqueuer;
    grant select (id) on bugle.jobs to bugle_enqueuer;
    grant insert (command, payload, queue, priority, run_at, deadline, timeout, max_attempts, retry_policy, headers,
      unique_key, idempotency_key, idempotency_ttl, order_key, limit_key, fair_key, steps, on_success, on_failure)
      on bugle.jobs to bugle_enqueuer;
    grant execute on function bugle.enqueue, bugle.enqueue_once, bugle.add_missing to bugle_enqueuer;
    -- what the trigger of an INSERT calls, as whoever inserts
    grant execute on function bugle.validate_job, bugle.ring, bugle.announce, bugle.bell_key, bugle.bell_channel,
      bugle.bell_is_free to bugle_enqueuer;
  end if;
  if exists (select from pg_roles r where r.rolname = 'bugle_viewer') then
    grant usage on schema bugle to bugle_viewer;
    grant select on bugle.jobs, bugle.jobs_live, bugle.workers, bugle.queue_stats, bugle.unserved, bugle.running_jobs,
      bugle.dead_letters, bugle.attempts, bugle.changes, bugle.retry_policies, bugle.commands, bugle.idempotency_keys, bugle.queues, bugle.settings to bugle_viewer;
    grant execute on function bugle.job, bugle.backoff, bugle.attempts_allowed, bugle.ready_heads, bugle.protocol, bugle.explain, bugle.endings, bugle.missing_leaves to bugle_viewer;
  end if;
  if exists (select from pg_roles r where r.rolname = 'bugle_worker') then
    grant usage on schema bugle to bugle_worker;
    grant execute on function bugle.protocol, bugle.schema_state, bugle.register, bugle.attach, bugle.unnamed,
      bugle.not_held(bigint, uuid, bugle.held_job[]), bugle.detach, bugle.heartbeat, bugle.should_drain,
      bugle.arm, bugle.scout, bugle.stand_down, bugle.claim,
      bugle.payloads, bugle.complete, bugle.complete_at,
      bugle.fail, bugle.give_back, bugle.snooze,
      bugle.cancel_held, bugle.wait, bugle.report_progress, bugle.endings, bugle.promote, bugle.expire, bugle.upkeep,
      bugle.bell_key, bugle.bell_channel, bugle.worker_channel to bugle_worker;
  end if;
  if exists (select from pg_roles r where r.rolname = 'bugle_operator') then
    grant usage on schema bugle to bugle_operator;
    grant execute on function bugle.add_missing, bugle.resolve, bugle.reject, bugle.job, bugle.explain,
      bugle.cancel(bigint, text), bugle.cancel(bigint[], text), bugle.cancel_where,
      bugle.pause(bigint, text), bugle.pause(bigint[], text), bugle.pause_where,
      bugle.resume(bigint, text), bugle.resume(bigint[], text), bugle.resume_where,
      bugle.restart(bigint, text, boolean), bugle.restart(bigint[], text, boolean), bugle.restart_where,
      bugle.remove(bigint, text), bugle.remove(bigint[], text), bugle.remove_where,
      bugle.reschedule(bigint, timestamptz, text), bugle.reschedule(bigint[], timestamptz, text), bugle.reschedule_where,
      bugle.set_priority(bigint, integer, text), bugle.set_priority(bigint[], integer, text), bugle.set_priority_where,
      bugle.set_state(bigint, text, text), bugle.set_state(bigint[], text, text), bugle.set_state_where,
      bugle.pause_queue, bugle.resume_queue, bugle.set_limits, bugle.set_command_limit, bugle.pause_worker, bugle.resume_worker, bugle.drain_worker to bugle_operator;
  end if;
end
$$;

do $$
begin
  if exists (select from pg_roles r where r.rolname = 'bugle_viewer') then
    grant select on bugle.schedules, bugle.schedule_runs to bugle_viewer;
    grant execute on function bugle.next_slot, bugle.schedule_preview to bugle_viewer;
  end if;
  if exists (select from pg_roles r where r.rolname = 'bugle_operator') then
    grant select, delete on bugle.schedules to bugle_operator;
    grant insert (name, cron, every, timezone, command, payload, queue, priority, timeout, max_attempts, retry_policy, headers,
        steps, misfire, catch_up_limit, overlap, starts_at, ends_at, paused_at),
      update (name, cron, every, timezone, command, payload, queue, priority, timeout, max_attempts, retry_policy, headers,
        steps, misfire, catch_up_limit, overlap, starts_at, ends_at, paused_at)
      on bugle.schedules to bugle_operator;
    grant execute on function bugle.next_slot, bugle.schedule_preview, bugle.pause_schedule, bugle.resume_schedule,
      bugle.run_schedule_now to bugle_operator;
  end if;
end
$$;

do $$
begin
  if exists (select from pg_roles r where r.rolname = 'bugle_enqueuer') then
    grant execute on function bugle.enqueue_workflow, bugle.enqueue_job, bugle.enqueue_after, bugle.answer to bugle_enqueuer;
  end if;
  if exists (select from pg_roles r where r.rolname = 'bugle_viewer') then
    grant select on bugle.dependencies, bugle.workflow_jobs to bugle_viewer;
    grant execute on function bugle.results_of, bugle.workflow, bugle.subscribe, bugle.unsubscribe, bugle.attend to bugle_viewer;
  end if;
  if exists (select from pg_roles r where r.rolname = 'bugle_worker') then
    grant execute on function bugle.spawn, bugle.dependency_results, bugle.results_of, bugle.subscribe, bugle.unsubscribe, bugle.attend to bugle_worker;
  end if;
  if exists (select from pg_roles r where r.rolname = 'bugle_operator') then
    grant execute on function bugle.resume_with, bugle.answer, bugle.results_of, bugle.workflow to bugle_operator;
  end if;
end
$$;

do $$
begin
  if exists (select from pg_roles r where r.rolname = 'bugle_viewer') then
    grant select on bugle.steps to bugle_viewer;
    grant execute on function bugle.ready_needs to bugle_viewer;
  end if;
  if exists (select from pg_roles r where r.rolname = 'bugle_worker') then
    grant execute on function bugle.start_step, bugle.finish_step, bugle.retry_step, bugle.begin_step, bugle.end_step to bugle_worker;
  end if;
  if exists (select from pg_roles r where r.rolname = 'bugle_operator') then
    grant execute on function bugle.set_step(bigint, integer, text, jsonb, text), bugle.set_step(bigint, text, text, jsonb, text)
      to bugle_operator;
  end if;
end
$$;

do $$
begin
  if exists (select from pg_roles r where r.rolname = 'bugle_viewer') then
    grant select on bugle.minutes, bugle.minute_stats, bugle.command_stats, bugle.error_groups to bugle_viewer;
    grant execute on function bugle.live_counts, bugle.ended_lately, bugle.held_queues, bugle.bounds, bugle.quantile, bugle.add_counts,
      bugle.sum_counts, bugle.fingerprint, bugle.group_errors, bugle.gauges,
      bugle.schema_state, bugle.clock, bugle.foreign_locks to bugle_viewer;
  end if;
  if exists (select from pg_roles r where r.rolname = 'bugle_worker') then
    grant execute on function bugle.report_minutes, bugle.gauges, bugle.bounds to bugle_worker;
  end if;
end
$$;
