-- enqueue: insert -> ready, scheduled. Called by everyone, mostly as a plain INSERT INTO bugle.jobs.
--
-- One row trigger on jobs_live does all of it (bugle.before_insert); another remembers idempotency keys, for jobs that have one
-- (15_once.sql).

create or replace function bugle.refuse(p_code text, p_message text, p_hint text) returns void
language plpgsql
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  raise exception using errcode = p_code, message = p_message, hint = p_hint;
end
$$;
comment on function bugle.refuse is 'Raise one of the errors of this schema.';

-- A value as it is quoted in an error: short, and on one line.
create or replace function bugle.quoted(p_value text) returns text
language sql immutable parallel safe
return quote_literal(case when length(p_value) > 60 then left(p_value, 60) || '…' else p_value end);
comment on function bugle.quoted is 'A value as errors show it: quoted, at most 60 characters.';

-- Runs only for a row that is not plainly valid and due now: decides what it is, or says what is wrong with it.
create or replace function bugle.validate_job(p_job bugle.jobs_live) returns bugle.jobs_live
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_new bugle.jobs_live := p_job;
  v_limit integer;
  v_size bigint;
begin
  -- a null in a column that has a default means the default: many tools send one for every field that is not set
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
  if v_new.command is null then
    perform bugle.refuse('JB001', 'column "command" must not be null',
      'Name what is to be done, as the executor is registered for it, for example ''send_mail''.');
  end if;
  v_new := bugle.apply_template(v_new);
  if v_new.state <> 'ready' then
    perform bugle.refuse('JB002', format('column "state" cannot be set: %s', bugle.quoted(v_new.state)),
      'Leave it out: a new job is ready, or scheduled if its run_at lies ahead. States change by functions.');
  end if;
  if v_new.attempt <> 0 or v_new.crashes <> 0 or v_new.claim <> 0 or v_new.worker is not null or v_new.reason is not null
    or v_new.result is not null or v_new.last_error is not null or v_new.last_error_code is not null
    or v_new.progress is not null or v_new.progress_note is not null or v_new.answer_by is not null
    or v_new.answer_token is not null or v_new.first_started_at is not null or v_new.started_at is not null
    or v_new.finished_at is not null or v_new.day is not null or v_new.step is not null or v_new.context is not null
    or v_new.parent is not null or v_new.outstanding is not null or v_new.answer is not null or v_new.watched is not null
  then
    perform bugle.refuse('JB002', format('column %s cannot be set', (
        select string_agg(format('"%s" (%s)', c.key, bugle.quoted(c.value)), ', ')
        from jsonb_each_text(jsonb_strip_nulls(to_jsonb(v_new))) c
        where c.key in ('crashes', 'attempt', 'claim', 'worker', 'reason', 'result', 'last_error', 'last_error_code',
            'progress', 'progress_note', 'answer_by', 'answer_token', 'first_started_at', 'started_at', 'finished_at', 'day',
            'step', 'context', 'parent', 'outstanding', 'answer', 'watched')
          and (c.value <> '0' or c.key not in ('attempt', 'crashes', 'claim')))),
      'These columns are the engine''s. Set only command, payload, queue, priority, run_at, deadline, timeout, max_attempts, retry_policy, headers, unique_key, idempotency_key, idempotency_ttl, order_key, limit_key, fair_key, steps, on_success, on_failure.');
  end if;
  if btrim(v_new.command, e' \t\n\r') = '' or length(v_new.command) > 200 then
    perform bugle.refuse('JB001', format('column "command" must have 1 to 200 characters, not %s: %s',
        length(v_new.command), bugle.quoted(v_new.command)),
      'Name what is to be done, as the executor is registered for it, for example ''send_mail''.');
  end if;
  if btrim(v_new.queue, e' \t\n\r') = '' or length(v_new.queue) > 100 then
    perform bugle.refuse('JB001', format('column "queue" must have 1 to 100 characters, not %s: %s',
        length(v_new.queue), bugle.quoted(v_new.queue)),
      'Leave it out for the queue ''default''.');
  end if;
  if length(v_new.unique_key) not between 1 and 300 then
    perform bugle.refuse('JB001', format('column "unique_key" must have 1 to 300 characters, not %s: %s',
        length(v_new.unique_key), bugle.quoted(v_new.unique_key)),
      'Leave it out if any number of such jobs may be there. A long key can be hashed: md5(…).');
  end if;
  if length(v_new.order_key) not between 1 and 300 or length(v_new.limit_key) not between 1 and 300
    or length(v_new.fair_key) not between 1 and 300
  then
    perform bugle.refuse('JB001', format('column "%s" must have 1 to 300 characters, not %s: %s', k.name, length(k.key), bugle.quoted(k.key)),
      'Leave it out if the job belongs to no key. A long key can be hashed: md5(…).')
    from (values ('order_key', v_new.order_key), ('limit_key', v_new.limit_key), ('fair_key', v_new.fair_key)) k (name, key)
    where length(k.key) not between 1 and 300;
  end if;
  if length(v_new.idempotency_key) not between 1 and 300 then
    perform bugle.refuse('JB001', format('column "idempotency_key" must have 1 to 300 characters, not %s: %s',
        length(v_new.idempotency_key), bugle.quoted(v_new.idempotency_key)),
      'Take the id of the message or request that causes the job. A long key can be hashed: md5(…).');
  end if;
  if v_new.idempotency_ttl is not null and (
    v_new.idempotency_key is null or v_new.idempotency_ttl <= interval '0' or v_new.idempotency_ttl > interval '10 years')
  then
    perform bugle.refuse('JB001', format('column "idempotency_ttl" must be positive, at most 10 years, and come with an idempotency_key, not %s',
        bugle.quoted(v_new.idempotency_ttl::text)),
      'It says how long the key is remembered; leave it out for 24 hours.');
  end if;
  if not isfinite(v_new.run_at) then
    perform bugle.refuse('JB001', format('column "run_at" must be a finite time, not %s', bugle.quoted(v_new.run_at::text)),
      'Leave it out to run as soon as possible.');
  end if;
  if v_new.deadline is not null then
    if not isfinite(v_new.deadline) then
      perform bugle.refuse('JB001', format('column "deadline" must be a finite time, not %s', bugle.quoted(v_new.deadline::text)),
        'Leave it out if the job may start at any time.');
    end if;
    if v_new.deadline <= greatest(v_new.run_at, now()) then
      perform bugle.refuse('JB001', format('column "deadline" (%s) is not later than now and run_at (%s): this job could never start',
          v_new.deadline, v_new.run_at),
        'The deadline is the last moment at which the job may be started.');
    end if;
  end if;
  if v_new.timeout is not null and (v_new.timeout <= interval '0' or v_new.timeout > interval '10 years') then
    perform bugle.refuse('JB001', format('column "timeout" must be positive and at most 10 years, not %s', bugle.quoted(v_new.timeout::text)),
      'It limits one attempt, for example interval ''5 minutes''.');
  end if;
  if v_new.max_attempts is not null and v_new.max_attempts < 1 then
    perform bugle.refuse('JB001', format('column "max_attempts" must be at least 1, not %s', v_new.max_attempts),
      'It is the number of retries plus one; leave it out for the policy''s own.');
  end if;
  if v_new.retry_policy is not null and not exists (
    select from bugle.retry_policies p where p.name = v_new.retry_policy)
  then
    perform bugle.refuse('JB004', format('column "retry_policy" names no policy: %s', bugle.quoted(v_new.retry_policy)),
      format('There are: %s. Insert a row into bugle.retry_policies for a new one.',
        (select string_agg(p.name, ', ' order by p.name) from bugle.retry_policies p)));
  end if;
  if v_new.headers is not null then
    if jsonb_typeof(v_new.headers) <> 'object' then
      perform bugle.refuse('JB001', case jsonb_typeof(v_new.headers)
          when 'null' then 'column "headers" must be a JSON object or SQL NULL, not the JSON value null'
          else format('column "headers" must be a JSON object, not %s', jsonb_typeof(v_new.headers)) end,
        'For example {"traceparent": "…"}. Leave it out if there are none.');
    end if;
    if octet_length(v_new.headers::text) > 65536 then
      perform bugle.refuse('JB003', format('column "headers" has %s bytes, the limit is 65536', octet_length(v_new.headers::text)),
        'Headers are for a few short names and values; put data into the payload.');
    end if;
  end if;
  if num_nonnulls(v_new.on_success, v_new.on_failure) > 0 then
    v_new.watched := bugle.has_follow_ups(v_new);
  end if;
  if v_new.steps is not null then
    v_new.steps := bugle.checked_steps(v_new.steps);
    if jsonb_typeof(v_new.payload) <> 'object' then
      perform bugle.refuse('JB001', format('column "payload" of a chain must be a JSON object, not %s', jsonb_typeof(v_new.payload)),
        'What the steps put out is laid over it, key by key. For example {"numbers": [1, 2]} instead of [1, 2].');
    end if;
    perform bugle.note_chain(v_new.command, v_new.steps);
  end if;
  if pg_column_size(v_new.payload) > 4096 then
    v_size := octet_length(v_new.payload::text);
    select s.max_payload_bytes into v_limit from bugle.settings s;
    if v_size > v_limit then
      perform bugle.refuse('JB003', format('column "payload" has %s bytes, the limit is %s', v_size, v_limit),
        'Store large data elsewhere and name it in the payload, or raise bugle.settings.max_payload_bytes.');
    end if;
  end if;

  if v_new.run_at > now() then
    v_new.state := 'scheduled';
    perform bugle.expect(v_new.run_at);
  end if;
  return v_new;
end
$$;
comment on function bugle.validate_job is 'A new job as it is stored: with its command''s template, scheduled if its run_at lies ahead; or refused.';

-- The one trigger of an enqueue. It has no WHEN clause: the text of one is read and planned anew by every statement, and the
-- conditions below, as a WHEN clause, cost an INSERT of one row more than half of what the INSERT itself costs. It is not on
-- bugle.jobs, because the engine's own inserts into history would fire it there. There is no statement trigger: its transition
-- table would copy every row.
--
-- An ordinary job that is due now passes by a few expressions. They may send a good one on to be looked at (a name that begins
-- with a blank, a null where a default belongs), never let a bad one pass. Few and short ones, and no PERFORM: each expression,
-- and each function call in it, is set up anew in every transaction, and a PERFORM costs ten of them.
--
-- It runs with the rights and the search_path of the role that inserts, so every function, operator and type is named with its
-- schema: a function of somebody else's making must never be a better match. IN, BETWEEN, LIKE, IS DISTINCT FROM and NULLIF
-- look for an operator by its bare name, so they are not used. Pinning search_path instead would slow a bulk INSERT by a sixth.
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
    and pg_catalog.num_nonnulls(new.deadline, new.timeout, new.max_attempts, new.retry_policy, new.idempotency_key,
      new.idempotency_ttl, new.worker, new.reason, new.result, new.last_error, new.last_error_code, new.progress,
      new.progress_note, new.answer_by, new.answer_token, new.first_started_at, new.started_at, new.finished_at, new.day,
      new.steps, new.step, new.context, new.on_success, new.on_failure, new.parent, new.outstanding, new.answer,
      new.watched) operator(pg_catalog.=) 0
    and new.attempt operator(pg_catalog.=) 0
    and new.crashes operator(pg_catalog.=) 0
    and new.claim operator(pg_catalog.=) 0
    and new.priority is not null and new.created_at is not null and new.updated_at is not null;
  -- apart from the others: most jobs have none of these
  if pg_catalog.num_nonnulls(new.unique_key, new.order_key, new.limit_key, new.fair_key, new.headers) operator(pg_catalog.>) 0 then
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
  -- the first row of a transaction, and mostly the only one: bugle.bell_is_free without what it does for others, and without
  -- remembering the queue if this transaction has written nothing yet
  if v_is_plain and coalesce(pg_catalog.current_setting('bugle.bell', true), '') operator(pg_catalog.=) ''
    and pg_catalog.pg_sequence_last_value('bugle.templates') is null
    -- seed: bell_is_kept_after_commit
    and pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.hashtextextended(new.queue, 7126490981))
    and (pg_catalog.pg_current_xact_id_if_assigned() is null or pg_catalog.set_config('bugle.bell', new.queue, true) is not null)
  then
    return new;
  end if;
  -- Further rows of a transaction. The setting may be anybody's: it can only leave out a ring. Whether there are templates
  -- (12_template.sql) is asked each time: a setting could be forged to get past them.
  if v_is_plain and new.queue operator(pg_catalog.=) pg_catalog.current_setting('bugle.bell', true)
    and pg_catalog.pg_sequence_last_value('bugle.templates') is null
  then
    return new;
  end if;

  if v_is_plain is not true or pg_catalog.pg_sequence_last_value('bugle.templates') is not null then
    -- the engine itself puts a job back among the live ones, and rings for it; nobody else can say so
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
  -- as bugle.ring does, without a statement for it
  if not bugle.bell_is_free(new.queue) then
    perform bugle.announce(bugle.bell_channel(new.queue), new.queue);
  end if;
  return new;
end
$$;
comment on function bugle.before_insert is 'Trigger: pass an ordinary job, have the others looked at, and ring if somebody sleeps.';

create or replace function bugle.refuse_by_hand() returns trigger
language plpgsql
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.refuse('JB002', format('column "state" cannot be set: %s', bugle.quoted(new.state)),
    'Leave it out: a job gets to its final state by being run.');
end
$$;
comment on function bugle.refuse_by_hand is 'Trigger: refuse a final state that was inserted by hand.';

-- Kept short: the text of a WHEN clause is read and planned anew for each statement.
select bugle.keep_trigger('bugle.jobs_live', 'before_insert', $$
  before insert on bugle.jobs_live for each row execute function bugle.before_insert()$$);

select bugle.keep_trigger('bugle.jobs_ended_by_hand', 'refuse', $$
  before insert on bugle.jobs_ended_by_hand for each row execute function bugle.refuse_by_hand()$$);

select bugle.keep_trigger('bugle.jobs_failed_by_hand', 'refuse', $$
  before insert on bugle.jobs_failed_by_hand for each row execute function bugle.refuse_by_hand()$$);
