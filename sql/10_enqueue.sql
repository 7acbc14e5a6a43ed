-- enqueue: insert -> ready, scheduled. Called by everyone, mostly as a plain INSERT INTO bugle.jobs.
--
-- Four row triggers sit on jobs_live: adapt (12_template.sql), admit, remember (15_once.sql), ring (20_wake.sql). All have a
-- WHEN clause, so that an ordinary job that is due now calls no function of ours. They are not on bugle.jobs, because the engine's own inserts into history would fire them there.
-- There is no statement trigger: its transition table would copy every row and cost COPY a third of its speed.

create or replace function bugle.refuse(p_code text, p_message text, p_hint text) returns void
language plpgsql
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
create or replace function bugle.admit() returns trigger
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_limit integer;
  v_size bigint;
begin
  if new.state <> 'ready' then
    perform bugle.refuse('JB002', format('column "state" cannot be set: %s', bugle.quoted(new.state)),
      'Leave it out: a new job is ready, or scheduled if its run_at lies ahead. States change by functions.');
  end if;
  if new.attempt <> 0 or new.crashes <> 0 or new.claim <> 0 or new.worker is not null or new.reason is not null
    or new.result is not null or new.last_error is not null or new.last_error_code is not null
    or new.progress is not null or new.progress_note is not null or new.answer_by is not null
    or new.answer_token is not null or new.first_started_at is not null or new.started_at is not null
    or new.finished_at is not null or new.day is not null
  then
    perform bugle.refuse('JB002', format('column %s cannot be set', (
        select string_agg(format('"%s" (%s)', c.key, bugle.quoted(c.value)), ', ')
        from jsonb_each_text(jsonb_strip_nulls(to_jsonb(new))) c
        where c.key in ('crashes', 'attempt', 'claim', 'worker', 'reason', 'result', 'last_error', 'last_error_code',
            'progress', 'progress_note', 'answer_by', 'answer_token', 'first_started_at', 'started_at', 'finished_at', 'day')
          and (c.value <> '0' or c.key not in ('attempt', 'crashes', 'claim')))),
      'These columns are the engine''s. Set only command, payload, queue, priority, run_at, deadline, timeout, max_attempts, retry_policy, headers, unique_key, idempotency_key, idempotency_ttl.');
  end if;
  if btrim(new.command, e' \t\n\r') = '' or length(new.command) > 200 then
    perform bugle.refuse('JB001', format('column "command" must have 1 to 200 characters, not %s: %s',
        length(new.command), bugle.quoted(new.command)),
      'Name what is to be done, as the executor is registered for it, for example ''send_mail''.');
  end if;
  if btrim(new.queue, e' \t\n\r') = '' or length(new.queue) > 100 then
    perform bugle.refuse('JB001', format('column "queue" must have 1 to 100 characters, not %s: %s',
        length(new.queue), bugle.quoted(new.queue)),
      'Leave it out for the queue ''default''.');
  end if;
  if length(new.unique_key) not between 1 and 300 then
    perform bugle.refuse('JB001', format('column "unique_key" must have 1 to 300 characters, not %s: %s',
        length(new.unique_key), bugle.quoted(new.unique_key)),
      'Leave it out if any number of such jobs may be there. A long key can be hashed: md5(…).');
  end if;
  if length(new.idempotency_key) not between 1 and 300 then
    perform bugle.refuse('JB001', format('column "idempotency_key" must have 1 to 300 characters, not %s: %s',
        length(new.idempotency_key), bugle.quoted(new.idempotency_key)),
      'Take the id of the message or request that causes the job. A long key can be hashed: md5(…).');
  end if;
  if new.idempotency_ttl is not null and (
    new.idempotency_key is null or new.idempotency_ttl <= interval '0' or new.idempotency_ttl > interval '10 years')
  then
    perform bugle.refuse('JB001', format('column "idempotency_ttl" must be positive, at most 10 years, and come with an idempotency_key, not %s',
        bugle.quoted(new.idempotency_ttl::text)),
      'It says how long the key is remembered; leave it out for 24 hours.');
  end if;
  if not isfinite(new.run_at) then
    perform bugle.refuse('JB001', format('column "run_at" must be a finite time, not %s', bugle.quoted(new.run_at::text)),
      'Leave it out to run as soon as possible.');
  end if;
  if new.deadline is not null then
    if not isfinite(new.deadline) then
      perform bugle.refuse('JB001', format('column "deadline" must be a finite time, not %s', bugle.quoted(new.deadline::text)),
        'Leave it out if the job may start at any time.');
    end if;
    if new.deadline <= greatest(new.run_at, now()) then
      perform bugle.refuse('JB001', format('column "deadline" (%s) is not later than now and run_at (%s): this job could never start',
          new.deadline, new.run_at),
        'The deadline is the last moment at which the job may be started.');
    end if;
  end if;
  if new.timeout is not null and (new.timeout <= interval '0' or new.timeout > interval '10 years') then
    perform bugle.refuse('JB001', format('column "timeout" must be positive and at most 10 years, not %s', bugle.quoted(new.timeout::text)),
      'It limits one attempt, for example interval ''5 minutes''.');
  end if;
  if new.max_attempts is not null and new.max_attempts < 1 then
    perform bugle.refuse('JB001', format('column "max_attempts" must be at least 1, not %s', new.max_attempts),
      'It is the number of retries plus one; leave it out for the policy''s own.');
  end if;
  if new.retry_policy is not null and not exists (
    select from bugle.retry_policies p where p.name = new.retry_policy)
  then
    perform bugle.refuse('JB004', format('column "retry_policy" names no policy: %s', bugle.quoted(new.retry_policy)),
      format('There are: %s. Insert a row into bugle.retry_policies for a new one.',
        (select string_agg(p.name, ', ' order by p.name) from bugle.retry_policies p)));
  end if;
  if new.headers is not null then
    if jsonb_typeof(new.headers) <> 'object' then
      perform bugle.refuse('JB001', format('column "headers" must be a JSON object, not %s', jsonb_typeof(new.headers)),
        'For example {"traceparent": "…"}.');
    end if;
    if octet_length(new.headers::text) > 65536 then
      perform bugle.refuse('JB003', format('column "headers" has %s bytes, the limit is 65536', octet_length(new.headers::text)),
        'Headers are for a few short names and values; put data into the payload.');
    end if;
  end if;
  if pg_column_size(new.payload) > 4096 then
    v_size := octet_length(new.payload::text);
    select s.max_payload_bytes into v_limit from bugle.settings s;
    if v_size > v_limit then
      perform bugle.refuse('JB003', format('column "payload" has %s bytes, the limit is %s', v_size, v_limit),
        'Store large data elsewhere and name it in the payload, or raise bugle.settings.max_payload_bytes.');
    end if;
  end if;

  if new.run_at > now() then
    new.state := 'scheduled';
    perform bugle.expect(new.run_at);
  end if;
  return new;
end
$$;
comment on function bugle.admit is 'Trigger: make a job with a future run_at scheduled; refuse what may not be enqueued.';

create or replace function bugle.refuse_by_hand() returns trigger
language plpgsql
as $$
begin
  perform bugle.refuse('JB002', format('column "state" cannot be set: %s', bugle.quoted(new.state)),
    'Leave it out: a job gets to its final state by being run.');
end
$$;
comment on function bugle.refuse_by_hand is 'Trigger: refuse a final state that was inserted by hand.';

-- Kept short: the text of a WHEN clause is read and planned anew for each statement.
select bugle.keep_trigger('bugle.jobs_live', 'admit', $$
  before insert on bugle.jobs_live for each row
  when ((
    new.run_at > now() or new.run_at = '-infinity' or new.state <> 'ready'
    or btrim(new.command, e' \t\n\r') = '' or length(new.command) > 200 or btrim(new.queue, e' \t\n\r') = '' or length(new.queue) > 100
    or pg_column_size(new.payload) > 4096
    or num_nonnulls(new.deadline, new.timeout, new.max_attempts, new.retry_policy, new.headers, new.unique_key,
      new.idempotency_key, new.idempotency_ttl, new.worker, new.reason, new.result, new.last_error, new.last_error_code,
      new.progress, new.progress_note, new.answer_by, new.answer_token, new.first_started_at, new.started_at,
      new.finished_at, new.day) > 0
    or new.attempt <> 0 or new.crashes <> 0 or new.claim <> 0)
    -- the engine itself puts a job back among the live ones; nobody else can say so
    and (current_setting('bugle.admit', true) is distinct from 'as told' or not has_table_privilege('bugle.jobs_live', 'update')))
  execute function bugle.admit()$$);

select bugle.keep_trigger('bugle.jobs_ended_by_hand', 'refuse', $$
  before insert on bugle.jobs_ended_by_hand for each row execute function bugle.refuse_by_hand()$$);

select bugle.keep_trigger('bugle.jobs_failed_by_hand', 'refuse', $$
  before insert on bugle.jobs_failed_by_hand for each row execute function bugle.refuse_by_hand()$$);
