-- grants: what each role may do. Only the owner has further rights on tables; functions do the rest with the owner's
-- rights.

do $$
declare
  v_role text;
begin
  foreach v_role in array array[
    'bugle_enqueuer', 'bugle_worker', 'bugle_observer', 'bugle_viewer', 'bugle_operator']
  loop
    if to_regrole(v_role) is null then
      begin
        execute format('create role %I nologin', v_role);
      exception
        when duplicate_object or unique_violation then
          null; -- another database of this server is being migrated at this moment
        when insufficient_privilege then
          raise notice 'role % was not created: % may not create roles. '
            'Create it and run "bugle migrate" again, or use the owner.', v_role, current_user;
      end;
    end if;
    if to_regrole(v_role) is not null then
      execute format('grant usage on schema bugle to %I', v_role);
    end if;
  end loop;
end
$$;

revoke all on all functions in schema bugle from public;

do $do$
declare
  v_grant record;
begin
  for v_grant in
    select g.role, r.rights
    from (values
      ('bugle_enqueuer', format('insert (%s), select (id) on bugle.jobs',
        array_to_string(bugle.settable_columns(), ', '))),
      -- for currval and lastval, which some drivers use to get the id
      ('bugle_enqueuer', 'select on sequence bugle.job_ids'),
      ('bugle_enqueuer', $$execute on function
        bugle.enqueue, bugle.enqueue_once, bugle.add_missing, bugle.enqueue_job, bugle.enqueue_after,
        bugle.enqueue_workflow, bugle.answer$$),
      -- used by the trigger of an INSERT, with the rights of the inserting role
      ('bugle_enqueuer', 'select on sequence bugle.templates'),
      ('bugle_enqueuer', $$execute on function
        bugle.validate_job, bugle.ring, bugle.announce, bugle.bell_key, bugle.bell_channel, bugle.bell_is_free$$),

      ('bugle_worker', $$execute on function
        -- register
        bugle.protocol, bugle.schema_state, bugle.register, bugle.serve, bugle.attach, bugle.detach, bugle.heartbeat,
        bugle.note_condition, bugle.should_drain, bugle.unnamed, bugle.not_held(bigint, uuid, bugle.held_job[]),
        -- wake and claim
        bugle.arm, bugle.scan_ready, bugle.stand_down, bugle.claim, bugle.payloads,
        bugle.bell_key, bugle.bell_channel, bugle.worker_channel,
        -- run
        bugle.start_step, bugle.finish_step, bugle.retry_step, bugle.begin_step, bugle.end_step,
        bugle.report_progress, bugle.spawn, bugle.dependency_results, bugle.results_of, bugle.subscribe,
        bugle.unsubscribe, bugle.attend, bugle.endings,
        -- end
        bugle.complete, bugle.complete_at, bugle.complete_all, bugle.fail, bugle.after_failure, bugle.give_back,
        bugle.snooze, bugle.cancel_held, bugle.wait,
        -- maintain and report
        bugle.promote, bugle.expire, bugle.upkeep, bugle.report_minutes, bugle.gauges, bugle.bounds$$),

      -- observers: everything but documents; viewers: these as well
      ('bugle_observer, bugle_viewer', $$select on
        bugle.attempts, bugle.changes, bugle.workflow_jobs, bugle.schedule_runs, bugle.idempotency_keys,
        bugle.retry_policies, bugle.commands, bugle.queues, bugle.settings,
        bugle.workers, bugle.running_jobs, bugle.unserved,
        bugle.queue_stats, bugle.minutes, bugle.minute_stats, bugle.command_stats, bugle.error_groups,
        bugle.doorbell_minutes, bugle.late_updates$$),
      ('bugle_observer, bugle_viewer', $$execute on function
        bugle.timeline, bugle.explain, bugle.workflow, bugle.backoff, bugle.attempts_allowed, bugle.retries_of,
        bugle.next_slot, bugle.schedule_preview,
        bugle.protocol, bugle.schema_state, bugle.clock, bugle.missing_leaves, bugle.missing_parts,
        bugle.foreign_locks, bugle.gauges,
        bugle.redacted, bugle.is_redacted,
        -- used by the views
        bugle.is_active, bugle.is_running, bugle.ready_heads, bugle.live_counts, bugle.ended_lately,
        bugle.restricted_queues, bugle.history_ahead, bugle.bounds, bugle.quantile, bugle.add_counts,
        bugle.total_counts, bugle.fingerprint, bugle.error_line, bugle.group_errors, bugle.throughput, bugle.matches,
        bugle.count_matching, bugle.jobs_matching,
        -- one queue
        bugle.limits_left, bugle.next_turns, bugle.blocked_keys, bugle.doorbell$$),
      ('bugle_viewer', $$select on
        bugle.jobs, bugle.jobs_live, bugle.steps, bugle.dead_letters, bugle.schedules, bugle.dependencies$$),
      ('bugle_viewer', $$execute on function
        bugle.job, bugle.results_of, bugle.endings, bugle.subscribe, bugle.unsubscribe, bugle.attend$$),

      ('bugle_operator', 'select, delete on bugle.schedules'),
      ('bugle_operator', format('insert (%1$s), update (%1$s) on bugle.schedules',
        array_to_string(bugle.settable_schedule_columns(), ', '))),
      ('bugle_operator', 'select, insert, update, delete on bugle.retry_policies'),
      ('bugle_operator', (
        select 'execute on function ' || string_agg(p.oid::regprocedure::text, ', ')
        from pg_proc p
        where p.pronamespace = 'bugle'::regnamespace
          and regexp_replace(p.proname, '_where$', '') = any (
            '{cancel,pause,resume,restart,remove,reschedule,set_priority,set_state,set_step}'))),
      ('bugle_operator', $$execute on function
        bugle.add_missing, bugle.resolve, bugle.reject, bugle.resume_with, bugle.answer,
        bugle.pause_queue, bugle.resume_queue, bugle.remove_queue, bugle.set_limits, bugle.set_command_limit,
        bugle.set_policy, bugle.remove_policy,
        bugle.pause_worker, bugle.resume_worker, bugle.drain_worker,
        bugle.pause_schedule, bugle.resume_schedule, bugle.run_schedule_now, bugle.next_slot, bugle.schedule_preview,
        bugle.count_matching, bugle.jobs_matching,
        bugle.job, bugle.explain, bugle.results_of, bugle.workflow, bugle.family, bugle.redacted$$)
      ) r (roles, rights)
      cross join lateral string_to_table(r.roles, ', ') g (role)
    union all
    select 'bugle_observer', format('select (%s) on %s', string_agg(quote_ident(a.attname), ', '), a.attrelid::regclass)
    from pg_attribute a
    where a.attrelid = any (array['bugle.jobs', 'bugle.jobs_live', 'bugle.steps', 'bugle.dead_letters',
        'bugle.schedules', 'bugle.dependencies']::regclass[])
      and a.attnum > 0
      and not a.attisdropped
      and a.attname <> all ('{payload,headers,context,answer,result,output}')
    group by a.attrelid
  loop
    if to_regrole(v_grant.role) is not null then
      execute format('grant %s to %I', v_grant.rights, v_grant.role);
    end if;
  end loop;
end
$do$;
