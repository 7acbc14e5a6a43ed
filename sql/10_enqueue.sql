-- enqueue: insert -> ready, scheduled. Called by applications, mostly as a plain INSERT INTO bugle.jobs.
--
-- One row trigger on jobs_live does all of it (bugle.before_insert). A second one stores idempotency keys
-- (15_once.sql). Everything that lists the columns a job may set is in this file.

-- Declared to return a value, so that it can be used in an expression: see bugle.check_job.
create or replace function bugle.refuse(p_code text, p_message text, p_hint text) returns boolean
language plpgsql set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  raise exception using errcode = p_code, message = p_message, hint = p_hint;
end
$$;
comment on function bugle.refuse is 'Raise one of the errors of this schema.';

create or replace function bugle.quoted(p_value text) returns text
language sql immutable parallel safe
return quote_literal(case when length(p_value) > 60 then left(p_value, 60) || '…' else p_value end);
comment on function bugle.quoted is 'A value as errors show it: quoted, at most 60 characters.';

-- This and the next one are plpgsql: in SQL they would be inlined into every rule of bugle.check_job, and set up again
-- in each transaction. A single INSERT of a scheduled job would be 7 % slower.
create or replace function bugle.refuse_length(p_column text, p_value text, p_most integer, p_hint text) returns boolean
language plpgsql
as $$
begin
  return bugle.refuse('JB001', format('column "%s" must have 1 to %s characters, not %s: %s',
    p_column, p_most, length(p_value), bugle.quoted(p_value)), p_hint);
end
$$;
comment on function bugle.refuse_length is 'Refuse a text that is empty or too long.';

create or replace function bugle.refuse_value(p_column text, p_rule text, p_value text, p_hint text) returns boolean
language plpgsql
as $$
begin
  return bugle.refuse('JB001',
    format('column "%s" must be %s, not %s', p_column, p_rule, bugle.quoted(p_value)), p_hint);
end
$$;
comment on function bugle.refuse_value is 'Refuse a value that breaks a rule.';

create or replace function bugle.is_name(p_text text, p_most integer) returns boolean
language sql immutable parallel safe
return btrim(p_text, e' \t\n\r') <> '' and length(p_text) <= p_most;
comment on function bugle.is_name is 'Whether a text has 1 to p_most characters, not all of them blank.';

create or replace function bugle.is_key(p_text text) returns boolean
language sql immutable parallel safe
return length(p_text) between 1 and 300;
comment on function bugle.is_key is 'Whether a text has 1 to 300 characters.';

create or replace function bugle.is_duration(p_interval interval) returns boolean
language sql immutable parallel safe
return p_interval > interval '0' and p_interval <= interval '10 years';
comment on function bugle.is_duration is 'Whether an interval is positive and at most 10 years.';

create or replace function bugle.is_retry_policy(p_name text) returns boolean
language plpgsql stable
as $$
begin
  return exists (select from bugle.retry_policies p where p.name = p_name);
end
$$;
comment on function bugle.is_retry_policy is 'Whether there is a retry policy of this name.';

create or replace function bugle.refuse_policy_name(p_column text, p_name text) returns boolean
language plpgsql
as $$
declare
  v_message constant text := format('column "%s" is not the name of a policy: %s', p_column, bugle.quoted(p_name));
  v_names constant text := (select string_agg(p.name, ', ' order by p.name) from bugle.retry_policies p);
  v_hint constant text := format('Policies: %s. Insert a row into bugle.retry_policies to add one.', v_names);
begin
  return bugle.refuse('JB004', v_message, v_hint);
end
$$;
comment on function bugle.refuse_policy_name is 'Refuse the name of a retry policy that does not exist.';

create or replace function bugle.settable_columns() returns text[]
language sql immutable parallel safe
return '{command,payload,queue,priority,run_at,deadline,timeout,max_attempts,retry_policy,retry_delay,headers,'
  'unique_key,idempotency_key,idempotency_ttl,order_key,limit_key,fair_key,steps,on_success,on_failure}'::text[];
comment on function bugle.settable_columns is 'The columns of bugle.jobs that a new job may set.';

create or replace function bugle.refuse_engine_columns(p_job bugle.jobs_live) returns boolean
language plpgsql
as $$
begin
  return bugle.refuse('JB002', format('column %s cannot be set', (
      select string_agg(format('"%s" (%s)', c.key, bugle.quoted(c.value)), ', ')
      from jsonb_each_text(jsonb_strip_nulls(to_jsonb(p_job))) c
      where c.key <> all (bugle.settable_columns()
          || '{id,state,enqueued_by,enqueued_from,created_at,updated_at}'::text[])
        and (c.value <> '0' or c.key not in ('attempt', 'crashes', 'claim')))),
    format('The engine sets these columns. Set only %s.', array_to_string(bugle.settable_columns(), ', ')));
end
$$;
comment on function bugle.refuse_engine_columns is 'Refuse a new job that sets columns of the engine, naming them.';

-- Stored as a plain list of names that starts at 1.
create or replace function bugle.checked_steps(p_steps text[]) returns text[]
language plpgsql immutable
as $$
declare
  v_wrong text;
begin
  if cardinality(p_steps) not between 1 and 100 or array_ndims(p_steps) <> 1 then
    perform bugle.refuse('JB001', format('column "steps" must be a list of 1 to 100 commands, not %s', case
        when array_ndims(p_steps) > 1 then format('one of %s dimensions', array_ndims(p_steps))
        else cardinality(p_steps)::text end),
      'For example array[''fetch'', ''resize'', ''upload'']. Leave it out for a job that is not a chain.');
  end if;
  select coalesce(bugle.quoted(s.name), 'null') into v_wrong
  from unnest(p_steps) s (name)
  where bugle.is_name(s.name, 200) is not true
  limit 1;
  if found then
    perform bugle.refuse('JB001', format('column "steps" must have commands of 1 to 200 characters, not %s', v_wrong),
      'Name each step as its executor is registered.');
  end if;
  return case when p_steps is not null then
    array(select s.name from unnest(p_steps) with ordinality s (name, position) order by s.position) end;
end
$$;
comment on function bugle.checked_steps is
  'The steps of a new job as they are stored, or an error. Null if it has none.';

-- A table of rules (condition, error, hint) as one CASE: plpgsql sets up one expression per transaction, where an IF
-- with a PERFORM for each rule would set up two per rule. It must not contain a subquery, or it would be planned and
-- started as a query for each job.
create or replace function bugle.check_job(p_job bugle.jobs_live) returns boolean
language plpgsql
as $$
begin
  return case
    when p_job.command is null then bugle.refuse('JB001', 'column "command" must not be null',
      'Give the name that an executor is registered for, for example ''send_mail''.')
    when p_job.state <> 'ready' then bugle.refuse_state(p_job.state,
      'Leave it out: a new job is ready, or scheduled if its run_at is in the future. Functions change the state.')
    when p_job.attempt <> 0 or p_job.crashes <> 0 or p_job.claim <> 0 or num_nonnulls(
      p_job.worker, p_job.reason, p_job.result, p_job.last_error, p_job.last_error_code, p_job.progress,
      p_job.progress_note, p_job.answer_by, p_job.answer_token, p_job.first_started_at, p_job.started_at,
      p_job.finished_at, p_job.day, p_job.step, p_job.context, p_job.parent, p_job.outstanding, p_job.answer,
      p_job.awaited) > 0
      then bugle.refuse_engine_columns(p_job)
    when not bugle.is_name(p_job.command, 200) then bugle.refuse_length('command', p_job.command, 200,
      'Give the name that an executor is registered for, for example ''send_mail''.')
    when not bugle.is_name(p_job.queue, 100) then bugle.refuse_length('queue', p_job.queue, 100,
      'Leave it out for the queue ''default''.')
    when not bugle.is_key(p_job.unique_key) then bugle.refuse_length('unique_key', p_job.unique_key, 300,
      'Leave it out if there may be any number of such jobs. A long key can be hashed: md5(…).')
    when not bugle.is_key(p_job.order_key) then bugle.refuse_length('order_key', p_job.order_key, 300,
      'Leave it out if the job needs no such key. A long key can be hashed: md5(…).')
    when not bugle.is_key(p_job.limit_key) then bugle.refuse_length('limit_key', p_job.limit_key, 300,
      'Leave it out if the job needs no such key. A long key can be hashed: md5(…).')
    when not bugle.is_key(p_job.fair_key) then bugle.refuse_length('fair_key', p_job.fair_key, 300,
      'Leave it out if the job needs no such key. A long key can be hashed: md5(…).')
    when not bugle.is_key(p_job.idempotency_key) then bugle.refuse_length('idempotency_key', p_job.idempotency_key, 300,
      'Use the id of the message or request that caused the job. A long key can be hashed: md5(…).')
    when not bugle.is_duration(p_job.idempotency_ttl)
      or (p_job.idempotency_ttl is not null and p_job.idempotency_key is null)
      then bugle.refuse_value('idempotency_ttl', 'positive, at most 10 years, and come with an idempotency_key',
        p_job.idempotency_ttl::text, 'It is how long the key is remembered; leave it out for 24 hours.')
    when not isfinite(p_job.run_at) then bugle.refuse_value('run_at', 'a finite time', p_job.run_at::text,
      'Leave it out to run as soon as possible.')
    when not isfinite(p_job.deadline) then bugle.refuse_value('deadline', 'a finite time', p_job.deadline::text,
      'Leave it out if the job may start at any time.')
    when p_job.deadline <= greatest(p_job.run_at, now()) then bugle.refuse('JB001',
      format('column "deadline" (%s) is not later than now and run_at (%s): this job could never start',
        p_job.deadline, p_job.run_at),
      'The deadline is the last moment at which the job may be started.')
    when not bugle.is_duration(p_job.timeout) then bugle.refuse_value('timeout', 'positive and at most 10 years',
      p_job.timeout::text, 'It limits one attempt, for example interval ''5 minutes''.')
    when p_job.max_attempts < 1 then bugle.refuse('JB001',
      format('column "max_attempts" must be at least 1, not %s', p_job.max_attempts),
      'It is the number of retries plus one; leave it out to use the retry policy''s.')
    when p_job.retry_policy is not null and not bugle.is_retry_policy(p_job.retry_policy)
      then bugle.refuse_policy_name('retry_policy', p_job.retry_policy)
    when p_job.retry_delay not between interval '0' and interval '10 years' then bugle.refuse_value('retry_delay',
      'between 0 and 10 years', p_job.retry_delay::text,
      'For example interval ''30 seconds''; leave it out for the delay of the retry policy.')
    when jsonb_typeof(p_job.headers) <> 'object' then bugle.refuse('JB001',
      case jsonb_typeof(p_job.headers)
        when 'null' then 'column "headers" must be a JSON object or SQL NULL, not the JSON value null'
        else format('column "headers" must be a JSON object, not %s', jsonb_typeof(p_job.headers)) end,
      'For example {"traceparent": "…"}. Leave it out if there are none.')
    when octet_length(p_job.headers::text) > 65536 then bugle.refuse('JB003',
      format('column "headers" has %s bytes, the limit is 65536', octet_length(p_job.headers::text)),
      'Headers are for a few short names and values; data belongs in the payload.')
    when p_job.steps is not null and jsonb_typeof(p_job.payload) <> 'object' then bugle.refuse('JB001',
      format('column "payload" of a chain must be a JSON object, not %s', jsonb_typeof(p_job.payload)),
      'The output of each step is merged into it, key by key. For example {"numbers": [1, 2]} instead of [1, 2].')
    when pg_column_size(p_job.payload) > 4096 then bugle.check_payload_size(p_job.payload)
    else true end;
end
$$;
comment on function bugle.check_job is 'Refuse a new job that sets a column to a value it cannot have.';

create or replace function bugle.check_payload_size(p_payload jsonb) returns boolean
language plpgsql
as $$
declare
  v_size constant bigint := octet_length(p_payload::text);
  v_limit constant integer := (select s.max_payload_bytes from bugle.settings s);
begin
  return v_size <= v_limit or bugle.refuse('JB003',
    format('column "payload" has %s bytes, the limit is %s', v_size, v_limit),
    'Store large data elsewhere and name it in the payload, or raise bugle.settings.max_payload_bytes.');
end
$$;
comment on function bugle.check_payload_size is 'Refuse a payload that is larger than the settings allow.';

-- Called only for a job that bugle.before_insert does not let pass as ordinary.
create or replace function bugle.validate_job(p_job bugle.jobs_live) returns bugle.jobs_live
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_new bugle.jobs_live := p_job;
  v_is_valid boolean;
begin
  -- null in a column with a default means the default: many tools send null for every field that is not set
  if num_nulls(v_new.payload, v_new.queue, v_new.priority, v_new.run_at, v_new.attempt, v_new.crashes, v_new.claim,
    v_new.created_at, v_new.updated_at) > 0
  then
    v_new.payload := coalesce(v_new.payload, '{}');
    v_new.queue := coalesce(v_new.queue, 'default');
    v_new.priority := coalesce(v_new.priority, 0);
    v_new.run_at := coalesce(v_new.run_at, now());
    v_new.attempt := coalesce(v_new.attempt, 0);
    v_new.crashes := coalesce(v_new.crashes, 0);
    v_new.claim := coalesce(v_new.claim, 0);
    v_new.created_at := coalesce(v_new.created_at, now());
    v_new.updated_at := coalesce(v_new.updated_at, now());
  end if;
  if v_new.enqueued_by is null then
    v_new.enqueued_by := session_user;
    v_new.enqueued_from := current_setting('application_name', true);
  end if;
  v_new := bugle.apply_template(v_new);
  v_is_valid := bugle.check_job(v_new); -- not PERFORM, which would be a query of its own
  if num_nonnulls(v_new.on_success, v_new.on_failure) > 0 then
    -- not rules of bugle.check_job, which would cost every job
    v_is_valid := case
      when not bugle.is_name(v_new.on_success, 200) then bugle.refuse_length('on_success', v_new.on_success, 200,
        'Give the name of the command to enqueue when the job has ended.')
      when not bugle.is_name(v_new.on_failure, 200) then bugle.refuse_length('on_failure', v_new.on_failure, 200,
        'Give the name of the command to enqueue when the job has ended.') end;
    v_new.awaited := true;
  end if;
  if v_new.steps is not null then
    v_new.steps := bugle.checked_steps(v_new.steps);
    perform bugle.note_chain(v_new.command, v_new.steps);
  end if;
  if v_new.run_at > now() then
    v_new.state := 'scheduled';
    perform bugle.expect(v_new.run_at);
  end if;
  return v_new;
end
$$;
comment on function bugle.validate_job is
  'A new job as it is stored: with its command''s template, scheduled if its run_at is in the future; or refused.';

-- The trigger of every enqueue. Tempting alternatives, and why they are not used:
--   A WHEN clause with the conditions below: every statement parses and plans it again, which makes an INSERT of one
--   row half as expensive again. A trigger on bugle.jobs: the engine's own inserts into history would fire it. A
--   statement trigger: its transition table copies every row, which costs COPY a third of its speed.
--
-- An ordinary job that is due now is recognized by a few expressions. They may send a valid job to bugle.validate_job
-- (a name that begins with a blank, a null where there is a default), but never accept an invalid one. They are few and
-- short, without PERFORM: each expression and each function call in it is set up again in every transaction, and a
-- PERFORM costs as much as ten of them.
--
-- It runs with the rights and the search_path of the inserting role, so every function, operator and type is qualified
-- with its schema: a function created by another role must never be a better match. IN, BETWEEN, LIKE, IS DISTINCT FROM
-- and NULLIF look up an operator by its unqualified name, so they are not used. Pinning search_path instead would make
-- a bulk INSERT a sixth slower.
create or replace function bugle.before_insert() returns trigger
language plpgsql
as $$
declare
  v_is_plain boolean;
begin
  v_is_plain := new.run_at operator(pg_catalog.<=) pg_catalog.now()
    and new.run_at operator(pg_catalog.>) '-infinity'
    and new.state operator(pg_catalog.=) 'ready'
    and pg_catalog.ascii(new.command) operator(pg_catalog.>) 32
    and pg_catalog.octet_length(new.command) operator(pg_catalog.<=) 200
    and pg_catalog.ascii(new.queue) operator(pg_catalog.>) 32
    and pg_catalog.octet_length(new.queue) operator(pg_catalog.<=) 100
    and pg_catalog.pg_column_size(new.payload) operator(pg_catalog.<=) 4096
    and pg_catalog.num_nonnulls(new.deadline, new.timeout, new.max_attempts, new.retry_policy, new.retry_delay,
      new.idempotency_key, new.idempotency_ttl, new.worker, new.reason, new.result, new.last_error,
      new.last_error_code, new.progress,
      new.progress_note, new.answer_by, new.answer_token, new.first_started_at, new.started_at, new.finished_at,
      new.day, new.steps, new.step, new.context, new.on_success, new.on_failure, new.parent, new.outstanding,
      new.answer, new.awaited) operator(pg_catalog.=) 0
    and new.attempt operator(pg_catalog.=) 0
    and new.crashes operator(pg_catalog.=) 0
    and new.claim operator(pg_catalog.=) 0
    and new.priority is not null and new.enqueued_by is not null and new.created_at is not null
    and new.updated_at is not null
    -- there are no templates (12_template.sql); checked for each row, because a setting could be forged
    and pg_catalog.pg_sequence_last_value('bugle.templates') is null;
  -- a separate expression: most jobs have none of these
  if pg_catalog.num_nonnulls(new.unique_key, new.order_key, new.limit_key, new.fair_key, new.headers)
    operator(pg_catalog.>) 0
  then
    v_is_plain := v_is_plain
      and new.unique_key operator(pg_catalog.<>) '' is not false
      and new.order_key operator(pg_catalog.<>) '' is not false
      and new.limit_key operator(pg_catalog.<>) '' is not false
      and new.fair_key operator(pg_catalog.<>) '' is not false
      and pg_catalog.octet_length(new.unique_key) operator(pg_catalog.<=) 300 is not false
      and pg_catalog.octet_length(new.order_key) operator(pg_catalog.<=) 300 is not false
      and pg_catalog.octet_length(new.limit_key) operator(pg_catalog.<=) 300 is not false
      and pg_catalog.octet_length(new.fair_key) operator(pg_catalog.<=) 300 is not false
      and (new.headers is null
        or pg_catalog.jsonb_typeof(new.headers) operator(pg_catalog.=) 'object'
        and pg_catalog.pg_column_size(new.headers) operator(pg_catalog.<=) 4096);
  end if;
  -- The first row of a transaction, usually the only one: bugle.bell_is_free, inlined for this case. The queue is
  -- remembered only if this transaction has already written something: most write one row, and a setting costs as much
  -- as a lock.
  if v_is_plain and coalesce(pg_catalog.current_setting('bugle.bell', true), '') operator(pg_catalog.=) ''
    -- seed: bell_is_kept_after_commit
    and pg_catalog.pg_try_advisory_xact_lock_shared(bugle.bell_key(new.queue))
    and (pg_catalog.pg_current_xact_id_if_assigned() is null
      or pg_catalog.set_config('bugle.bell', new.queue, true) is not null)
  then
    return new;
  end if;
  -- Further rows of a transaction. A session that forges this setting only suppresses its own notification.
  if v_is_plain and new.queue operator(pg_catalog.=) pg_catalog.current_setting('bugle.bell', true) then
    return new;
  end if;

  if v_is_plain is not true then
    -- the engine moves a job back to the live table, and rings for it; no other role may update the table
    if pg_catalog.current_setting('bugle.skip_checks', true) operator(pg_catalog.=) 'on'
      and pg_catalog.has_table_privilege('bugle.jobs_live', 'update')
    then
      return new;
    end if;
    new := bugle.validate_job(new);
    if new.state operator(pg_catalog.<>) 'ready' then
      return new;
    end if;
  end if;
  -- bugle.ring, inlined
  if not bugle.bell_is_free(new.queue) then
    perform bugle.announce(bugle.bell_channel(new.queue), new.queue);
  end if;
  return new;
end
$$;
comment on function bugle.before_insert is
  'Trigger: accept an ordinary job, validate all others, and ring if a worker is idle.';

create or replace function bugle.refuse_state(p_state text, p_hint text) returns boolean
language plpgsql
as $$
begin
  return bugle.refuse('JB002', format('column "state" cannot be set: %s', bugle.quoted(p_state)), p_hint);
end
$$;
comment on function bugle.refuse_state is 'Refuse a state that was inserted by hand.';

create or replace function bugle.refuse_by_hand() returns trigger
language plpgsql set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.refuse_state(new.state, 'Leave it out: a job reaches a final state by being run.');
end
$$;
comment on function bugle.refuse_by_hand is 'Trigger: refuse a final state that was inserted by hand.';

select bugle.keep_trigger('bugle.jobs_live', 'before_insert', $$
  before insert on bugle.jobs_live for each row execute function bugle.before_insert()$$);

select bugle.keep_trigger('bugle.jobs_ended_by_hand', 'refuse', $$
  before insert on bugle.jobs_ended_by_hand for each row execute function bugle.refuse_by_hand()$$);

select bugle.keep_trigger('bugle.jobs_failed_by_hand', 'refuse', $$
  before insert on bugle.jobs_failed_by_hand for each row execute function bugle.refuse_by_hand()$$);

-- A job that ends between the INSERT and bugle.on_duplicate (15_once.sql) frees its key: then the INSERT is tried
-- again.
create or replace function bugle.enqueue_once(
  p_command text, p_payload jsonb default '{}', p_queue text default 'default', p_priority integer default 0,
  p_run_at timestamptz default null, p_deadline timestamptz default null, p_timeout interval default null,
  p_max_attempts integer default null, p_retry_policy text default null, p_headers jsonb default null,
  p_unique_key text default null, p_on_conflict text default null, p_idempotency_key text default null,
  p_idempotency_ttl interval default null, p_order_key text default null, p_limit_key text default null,
  p_fair_key text default null, p_steps text[] default null, p_on_success text default null,
  p_on_failure text default null, p_retry_delay interval default null,
  out id bigint, out created boolean)
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_payload constant jsonb := coalesce(p_payload, '{}');
  v_id bigint := nextval('bugle.job_ids');
  v_key text := p_idempotency_key;
  v_ttl interval := p_idempotency_ttl;
begin
  if p_on_conflict not in ('keep', 'replace', 'move') then
    perform bugle.refuse('JB001',
      format('p_on_conflict must be keep, replace or move, not %s', bugle.quoted(p_on_conflict)),
      'keep leaves the existing job as it is, replace sets its payload, move sets its run_at.');
  end if;
  -- this runs with the owner's rights: the caller must not be able to switch the checks off
  perform set_config('bugle.skip_checks', '', true);

  if p_idempotency_key is null and p_unique_key is null and pg_sequence_last_value('bugle.templates') is not null then
    select md5(v_payload::text), c.unique_for into v_key, v_ttl
    from bugle.commands c
    where c.name = p_command
      and c.unique_for is not null;
  end if;
  -- a key that is too long is refused below, with the job
  if length(v_key) between 1 and 300 and length(p_command) <= 200 then
    while not bugle.take_idempotency_key(p_command, v_key, v_id, v_ttl) loop
      id := bugle.idempotency_key_holder(p_command, v_key);
      if id is not null then
        if p_idempotency_key is null then
          id := coalesce(bugle.on_duplicate(p_command, null, v_payload, p_run_at, p_deadline, p_on_conflict), id);
        end if;
        created := false;
        return;
      end if;
    end loop;
  end if;

  for v_try in 1 .. 1000 loop
    insert into bugle.jobs as j (
      id, command, payload, queue, priority, run_at, deadline, timeout, max_attempts, retry_policy, headers,
      unique_key, idempotency_key, idempotency_ttl, order_key, limit_key, fair_key, steps, on_success, on_failure,
      retry_delay)
    overriding system value
    values (
      v_id, p_command, v_payload, coalesce(p_queue, 'default'), coalesce(p_priority, 0), coalesce(p_run_at, now()),
      p_deadline, p_timeout, p_max_attempts, p_retry_policy, p_headers,
      p_unique_key, v_key, v_ttl, p_order_key, p_limit_key, p_fair_key, p_steps,
      p_on_success, p_on_failure, p_retry_delay)
    on conflict do nothing;
    if found then
      id := v_id;
      created := true;
      return;
    end if;
    id := bugle.on_duplicate(p_command, p_unique_key, v_payload, p_run_at, p_deadline, p_on_conflict);
    if id is not null then
      if v_key is not null then
        update bugle.idempotency_keys k
        set job = enqueue_once.id
        where k.command = p_command
          and k.key = v_key;
      end if;
      created := false;
      return;
    end if;
  end loop;
  perform bugle.refuse('40001',
    format('the job with the unique_key %s ended and was enqueued again repeatedly', bugle.quoted(p_unique_key)),
    'Try again.');
end
$$;
comment on function bugle.enqueue_once is 'Enqueue one job, unless there is one with its unique_key or '
  'idempotency_key. Returns the id of the job that exists now, and whether it is new.';

create or replace function bugle.enqueue(
  p_command text, p_payload jsonb default '{}', p_queue text default 'default', p_priority integer default 0,
  p_run_at timestamptz default null, p_deadline timestamptz default null, p_timeout interval default null,
  p_max_attempts integer default null, p_retry_policy text default null, p_headers jsonb default null,
  p_unique_key text default null, p_on_conflict text default null, p_idempotency_key text default null,
  p_idempotency_ttl interval default null, p_order_key text default null, p_limit_key text default null,
  p_fair_key text default null, p_steps text[] default null, p_on_success text default null,
  p_on_failure text default null, p_retry_delay interval default null)
returns bigint
language sql
return (bugle.enqueue_once(p_command, p_payload, p_queue, p_priority, p_run_at, p_deadline, p_timeout, p_max_attempts,
  p_retry_policy, p_headers, p_unique_key, p_on_conflict, p_idempotency_key, p_idempotency_ttl, p_order_key,
  p_limit_key, p_fair_key, p_steps, p_on_success, p_on_failure, p_retry_delay)).id;
comment on function bugle.enqueue is 'Enqueue one job; the same as inserting into bugle.jobs. Null means the default. '
  'Returns its id, or that of the existing job with its key.';
