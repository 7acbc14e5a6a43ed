-- fleet: pause, resume or drain a whole queue or one worker. Called by operators.

-- Queues need not be declared, so a name can be mistyped: a queue is known if anything names it.
create or replace function bugle.is_known_queue(p_queue text) returns boolean
language sql stable
as $$
  select p_queue = 'default'
    or exists (select from bugle.queues q where q.name = p_queue)
    or exists (select from bugle.registrations r where p_queue = any (r.queues))
    or exists (select from bugle.schedules s where s.queue = p_queue)
    or exists (select from bugle.commands c where c.queue = p_queue)
    or exists (select from bugle.jobs_live j where j.queue = p_queue)
$$;
comment on function bugle.is_known_queue is
  'Whether a setting, a worker, a schedule, a template or a live job names this queue.';

create or replace function bugle.pause_queue(p_queue text, p_note text default null) returns void
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if bugle.is_known_queue(p_queue) is not true then
    perform bugle.refuse('JB030', format('there is no queue %s', coalesce(bugle.quoted(p_queue), 'null')),
      format('Queues of workers and settings: %s. Any queue with jobs, or with a row in bugle.queues, can be paused.', (
        select string_agg(n.name, ', ' order by n.name)
        from (
          select 'default' as name
          union
          select q.name from bugle.queues q
          union
          select unnest(r.queues) from bugle.registrations r where bugle.is_active(r)
          order by 1
          limit 20) n)));
  end if;
  insert into bugle.queues (name, paused_at) values (p_queue, now())
  on conflict (name) do update set paused_at = coalesce(queues.paused_at, excluded.paused_at);
  perform bugle.record_change('pause_queue', null, null, 'paused', p_note, p_queue => p_queue);
end
$$;
comment on function bugle.pause_queue is
  'Stop claiming from a queue until it is resumed. Jobs can still be enqueued; running ones are not affected.';

create or replace function bugle.resume_queue(p_queue text, p_note text default null) returns void
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  update bugle.queues q set paused_at = null where q.name = p_queue and q.paused_at is not null;
  if not found then
    perform bugle.refuse('JB031', format('queue %s is not paused', coalesce(bugle.quoted(p_queue), 'null')),
      'See bugle.queues.');
  end if;
  perform bugle.record_change('resume_queue', null, 'paused', null, p_note, p_queue => p_queue);
  perform bugle.ring(p_queue), bugle.pass_on(p_queue);
end
$$;
comment on function bugle.resume_queue is 'Claim from a paused queue again.';

create or replace function bugle.remove_queue(p_queue text, p_note text default null) returns void
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_queue bugle.queues;
begin
  if exists (select from bugle.jobs_live j where j.queue = p_queue) then
    perform bugle.refuse('JB031', format('queue %s has live jobs', bugle.quoted(p_queue)),
      format('select bugle.cancel_where(p_queue => %L); cancels them.', p_queue));
  end if;
  delete from bugle.queues q where q.name = p_queue returning q.* into v_queue;
  if not found then
    perform bugle.refuse('JB030', format('there is no queue %s', coalesce(bugle.quoted(p_queue), 'null')),
      'Only a queue with a row in bugle.queues, because it was paused or limited, can be removed.');
  end if;
  delete from bugle.claim_positions c where c.queue = p_queue;
  perform bugle.record_change('remove_queue', null,
    concat_ws(', ', case when v_queue.paused_at is not null then 'paused' end, bugle.describe_limits(v_queue)), null,
    p_note, p_queue => p_queue);
end
$$;
comment on function bugle.remove_queue is
  'Remove a queue that has no live jobs: its pause, its limits and its other settings. Its history stays.';

create or replace function bugle.tell_worker(p_verb text, p_worker bigint, p_note text) returns void
language plpgsql
as $$
begin
  update bugle.registrations r
  set paused_at = case p_verb
      when 'pause_worker' then coalesce(r.paused_at, now())
      when 'resume_worker' then null
      else r.paused_at end,
    drained_at = case p_verb when 'drain_worker' then now() else r.drained_at end
  where r.id = p_worker
    and bugle.is_active(r);
  if not found then
    perform bugle.refuse('JB030', format('there is no live worker %s', p_worker), 'See bugle.workers.');
  end if;
  perform bugle.record_change(p_verb, null, null, null, p_note, p_worker => p_worker);
  perform bugle.announce(bugle.worker_channel(p_worker), split_part(p_verb, '_', 1));
end
$$;
comment on function bugle.tell_worker is 'Pause, resume or drain a live worker, and record it.';

create or replace function bugle.pause_worker(p_worker bigint, p_note text default null) returns void
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin perform bugle.tell_worker('pause_worker', p_worker, p_note); end $$;
comment on function bugle.pause_worker is
  'A worker claims nothing more until it is resumed; the jobs it runs are not affected.';

create or replace function bugle.resume_worker(p_worker bigint, p_note text default null) returns void
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin perform bugle.tell_worker('resume_worker', p_worker, p_note); end $$;
comment on function bugle.resume_worker is 'A paused worker claims again.';

create or replace function bugle.drain_worker(p_worker bigint, p_note text default null) returns void
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$ begin perform bugle.tell_worker('drain_worker', p_worker, p_note); end $$;
comment on function bugle.drain_worker is 'A worker finishes its jobs and stops, as after SIGTERM.';

-- Called by a worker once it listens: it missed earlier notifications.
create or replace function bugle.should_drain(p_worker bigint, p_nonce uuid) returns boolean
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  return exists (
    select from bugle.registrations r where r.id = p_worker and r.nonce = p_nonce and r.drained_at is not null);
end
$$;
comment on function bugle.should_drain is 'Whether an operator has told this worker to drain.';
