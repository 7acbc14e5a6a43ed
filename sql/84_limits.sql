-- limits, for operators: set them while everything runs. They apply from the commit on; jobs that run already continue.
-- What a limit may be is in bugle.rules (82_rules.sql), also for rows that are written by hand.

create or replace function bugle.describe_limits(p_limits bugle.queues) returns text
language sql stable
return nullif(concat_ws(', ',
  'max_running ' || p_limits.max_running,
  'max_running_per_key ' || p_limits.max_running_per_key,
  'max_starts ' || p_limits.max_starts || ' per ' || p_limits.starts_period::text,
  'max_starts_per_key ' || p_limits.max_starts_per_key || ' per ' || p_limits.starts_per_key_period::text,
  'order_on_retry ' || nullif(p_limits.order_on_retry, 'block')), '');
comment on function bugle.describe_limits is 'The limits of a queue in one line.';

-- By a function or by hand: the first limit of a queue waits for claims under way that have not seen it. Then the queue
-- is scanned, because there may be more room now.
create or replace function bugle.note_limits() returns trigger
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if new.is_limited and (tg_op = 'INSERT' or not old.is_limited) then
    lock table bugle.limit_gate in share mode;
  end if;
  perform bugle.ring(new.name), bugle.pass_on(new.name);
  return null;
end
$$;
comment on function bugle.note_limits is 'Trigger: the limits of a queue have changed.';

select bugle.keep_trigger('bugle.queues', 'note_limits', $$
  after insert or update of max_running, max_running_per_key, max_starts, starts_period, max_starts_per_key,
    starts_per_key_period, order_on_retry
  on bugle.queues for each row execute function bugle.note_limits()$$);

create or replace function bugle.note_command_limit() returns trigger
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.ring(h.queue), bugle.pass_on(h.queue)
  from bugle.ready_heads() h
  where h.command = new.name
    or h.steps is not null;
  return null;
end
$$;
comment on function bugle.note_command_limit is 'Trigger: the limit of a command has changed.';

select bugle.keep_trigger('bugle.commands', 'note_command_limit', $$
  after insert or update of max_running on bugle.commands for each row execute function bugle.note_command_limit()$$);

create or replace function bugle.set_limits(
  p_queue text, p_max_running integer default null, p_max_starts integer default null,
  p_starts_period interval default null, p_max_running_per_key integer default null,
  p_max_starts_per_key integer default null, p_starts_per_key_period interval default null,
  p_order_on_retry text default null, p_note text default null)
returns text
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_before bugle.queues;
  v_after bugle.queues;
begin
  insert into bugle.queues (name) values (p_queue) on conflict (name) do nothing;
  select q.* into v_before from bugle.queues q where q.name = p_queue for update;
  update bugle.queues q
  set max_running = nullif(coalesce(p_max_running, q.max_running), 0),
    max_running_per_key = nullif(coalesce(p_max_running_per_key, q.max_running_per_key), 0),
    max_starts = nullif(coalesce(p_max_starts, q.max_starts), 0),
    starts_period = coalesce(p_starts_period, case when p_max_starts is distinct from 0 then q.starts_period end),
    max_starts_per_key = nullif(coalesce(p_max_starts_per_key, q.max_starts_per_key), 0),
    starts_per_key_period = coalesce(p_starts_per_key_period,
      case when p_max_starts_per_key is distinct from 0 then q.starts_per_key_period end),
    order_on_retry = coalesce(p_order_on_retry, q.order_on_retry)
  where q.name = p_queue
  returning q.* into v_after;
  perform bugle.record_change('set_limits', null, bugle.describe_limits(v_before), bugle.describe_limits(v_after),
    p_note, p_queue => p_queue);
  return bugle.describe_limits(v_after);
end
$$;
comment on function bugle.set_limits is
  'Set limits of a queue: what is left out stays, 0 removes a limit. They apply at once. Returns the limits set now.';

create or replace function bugle.set_command_limit(p_command text, p_max_running integer, p_note text default null)
returns void
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_before integer;
begin
  if p_max_running is null then
    perform bugle.refuse('JB001', '"p_max_running" must be a number, not null', '0 removes the limit.');
  end if;
  -- the row would make it a known one
  if (select s.known_commands_only from bugle.settings s) then
    perform bugle.refuse_unknown_names(array[p_command]);
  end if;
  insert into bugle.commands (name) values (p_command) on conflict (name) do nothing;
  select c.max_running into v_before from bugle.commands c where c.name = p_command for update;
  update bugle.commands c set max_running = nullif(p_max_running, 0) where c.name = p_command;
  perform bugle.record_change('set_command_limit', null, 'max_running ' || v_before,
    'max_running ' || nullif(p_max_running, 0), p_note, p_command => p_command);
end
$$;
comment on function bugle.set_command_limit is
  'Set how many jobs of a command may run at once, in all queues together; 0 removes the limit.';
