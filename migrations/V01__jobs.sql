-- Jobs: one table for the user, a few behind it.
--
-- bugle.jobs is what people insert into and select from. It is partitioned by state, so that the hot part stays as
-- small as the backlog: live jobs in jobs_live, which has every index the engine needs, and finished ones in history
-- tables that are partitioned again by UTC day, because they leave by the day.

comment on schema bugle is
  'Bugle, a Postgres-native job runner. Enqueue with INSERT INTO bugle.jobs; read bugle.jobs and the views.';

create table bugle.jobs (
  -- Always from the sequence: an INSERT that gives an id is rejected by Postgres itself (428C9), at no cost for the
  -- others. Before PostgreSQL 17 partitions do not inherit it; the engine's own inserts into them name the id.
  id bigint generated always as identity (sequence name bugle.job_ids),
  state text not null default 'ready',

  -- set by the application, all but the command with a default
  command text not null,
  payload jsonb not null default '{}',
  queue text not null default 'default',
  priority integer not null default 0,
  run_at timestamptz not null default now(),
  deadline timestamptz,
  timeout interval,
  max_attempts integer,
  retry_policy text,
  retry_delay interval,
  headers jsonb,
  unique_key text,
  idempotency_key text,
  idempotency_ttl interval,
  order_key text,
  limit_key text,
  fair_key text,
  steps text[],
  on_success text,
  on_failure text,

  -- written by the engine
  attempt integer not null default 0,
  crashes integer not null default 0,
  claim bigint not null default 0,
  worker bigint,
  reason text,
  result jsonb,
  last_error text,
  last_error_code text,
  progress real,
  progress_note text,
  paused_from text,
  answer_by timestamptz,
  answer_token text,
  answer jsonb,
  step integer,
  context jsonb,
  parent bigint,
  outstanding integer,
  -- read by every outcome: is there anything else to do?
  awaited boolean,
  enqueued_by text default session_user,
  enqueued_from text default current_setting('application_name', true),
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  first_started_at timestamptz,
  started_at timestamptz,
  finished_at timestamptz,
  day date
) partition by list (state);

comment on table bugle.jobs is
  'One row is one job: a command to run, and its state. Insert command and payload; everything else has a default.';
comment on column bugle.jobs.id is 'Assigned by the database, rising; it cannot be set. INSERT … RETURNING id.';
comment on column bugle.jobs.state is
  'scheduled, ready, running, retrying, paused or waiting; in the end completed, failed or cancelled. Changed by '
  'functions only.';
comment on column bugle.jobs.command is 'What to do: the name an executor is registered for in a worker.';
comment on column bugle.jobs.payload is 'The data for the executor: any JSON, up to settings.max_payload_bytes.';
comment on column bugle.jobs.queue is
  'The queue it waits in. Each worker serves some queues. A new name needs no setup.';
comment on column bugle.jobs.priority is 'Smaller values run first; equal ones in the order in which they are due.';
comment on column bugle.jobs.run_at is
  'Not before this time. A job with a future time is scheduled; after a failure this is the time of the next attempt.';
comment on column bugle.jobs.deadline is
  'The last moment at which it may be started; after it the job fails. Null: any time.';
comment on column bugle.jobs.timeout is 'How long one attempt may take. Null: the timeout of its command, or no limit.';
comment on column bugle.jobs.max_attempts is 'Retries plus one. Null: as set for its command or its retry policy.';
comment on column bugle.jobs.retry_policy is
  'A name from bugle.retry_policies. Null: the policy of its command, or default.';
comment on column bugle.jobs.retry_delay is
  'How long to wait before the first retry, instead of the delay of its retry policy. Null: the policy''s delay.';
comment on column bugle.jobs.headers is 'Names and values that are passed along with the job, for tracing for example.';
comment on column bugle.jobs.unique_key is 'At most one live job of a command has the same key. Null: any number.';
comment on column bugle.jobs.idempotency_key is
  'Only one job of a command has this key until it expires, even if that job has ended. For example the id of a '
  'message.';
comment on column bugle.jobs.idempotency_ttl is 'How long the idempotency_key is remembered. Null: 24 hours.';
comment on column bugle.jobs.order_key is
  'Jobs of one queue and key run one after another, in order of their ids. Null: no order.';
comment on column bugle.jobs.limit_key is
  'Jobs with this key count towards the limits per key of its queue. Null: only those of the queue apply.';
comment on column bugle.jobs.fair_key is
  'The keys of a queue, tenants for example, take turns. Null: all jobs without a key take turns as one.';
comment on column bugle.jobs.steps is
  'Makes the job a chain: commands that run in order in one worker. Its command is then only a name.';
comment on column bugle.jobs.on_success is 'The command of a job that is enqueued when this one is completed.';
comment on column bugle.jobs.on_failure is 'The command of a job that is enqueued when this one has failed.';
comment on column bugle.jobs.attempt is
  'How often it was started: 1 during the first attempt. Giving back and snoozing do not count, crashes do.';
comment on column bugle.jobs.crashes is
  'How often its worker was lost while running it. At settings.crash_limit it fails.';
comment on column bugle.jobs.claim is
  'Rises each time it is claimed. A call about it under an older number is rejected.';
comment on column bugle.jobs.worker is 'The worker that runs it, or ran it last: bugle.workers.id.';
comment on column bugle.jobs.reason is
  'Why it ended as it did: attempts_exhausted, not_retryable, deadline, timeout, crash_loop, answer_overdue, '
  'dependency_failed, rejected, executor …';
comment on column bugle.jobs.result is 'The result of the executor, or of an external answer.';
comment on column bugle.jobs.last_error is
  'The last error, with its causes; at most 10,000 characters. All errors are in bugle.attempts.';
comment on column bugle.jobs.last_error_code is
  'The same as a short code, where the executor gave one: timeout, panic, worker_lost …';
comment on column bugle.jobs.progress is 'The progress of the running attempt, as reported by its executor.';
comment on column bugle.jobs.progress_note is 'What it is doing now, as reported by its executor.';
comment on column bugle.jobs.paused_from is 'The state a paused job goes back to when it is resumed.';
comment on column bugle.jobs.answer_by is
  'A waiting job that is not answered by then fails. Null: it waits indefinitely.';
comment on column bugle.jobs.answer_token is 'Must come with the answer to a waiting job, if it is set.';
comment on column bugle.jobs.answer is 'The answer with which its executor continues: bugle.resume_with.';
comment on column bugle.jobs.step is 'How many of the steps are done.';
comment on column bugle.jobs.context is
  'The merged output of the steps so far. The next step gets the payload with this merged into it.';
comment on column bugle.jobs.parent is 'The job whose executor spawned this one.';
comment on column bugle.jobs.outstanding is 'How many other jobs it still waits for.';
comment on column bugle.jobs.awaited is
  'Whether its outcome matters to others: other jobs wait for it, or a command follows it.';
comment on column bugle.jobs.enqueued_by is 'The login that enqueued it.';
comment on column bugle.jobs.enqueued_from is 'The application_name of the session that enqueued it.';
comment on column bugle.jobs.created_at is 'When it was enqueued.';
comment on column bugle.jobs.updated_at is 'When its state last changed, or progress was reported.';
comment on column bugle.jobs.first_started_at is 'When its first attempt began.';
comment on column bugle.jobs.started_at is 'When its latest attempt began.';
comment on column bugle.jobs.finished_at is 'When it reached its final state.';
comment on column bugle.jobs.day is
  'The UTC day whose history partition holds a finished job. Retention deletes whole days.';
comment on sequence bugle.job_ids is 'The ids of bugle.jobs.';

-- No checks: every INSERT and UPDATE would parse and plan each of them again, and three were a sixth of the cost of
-- inserting one job. Only functions of this schema write what they said. The tests add them to every database they use
-- (tests/common/sentences.sql). Unknown states have no partition.

create table bugle.jobs_live
  partition of bugle.jobs
  for values in ('scheduled', 'ready', 'running', 'retrying', 'paused', 'waiting')
  -- Every job leaves two dead rows here. Vacuum by count, not by share of the table: a share of an almost empty table
  -- is nothing, a share of ten million is too late.
  with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.1, autovacuum_analyze_threshold = 10000);

comment on table bugle.jobs_live is
  'Part of bugle.jobs: everything that is not finished, with all indexes the engine needs.';

-- A claim writes a new version of its job's row, and with it an entry beside the old one in this index. Pages that are
-- half full have room for it; full ones were split, or searched for dead entries, by every claim of a backlog.
alter table bugle.jobs_live add constraint jobs_live_pkey primary key (id) with (fillfactor = 50);

-- The claim's index. Its second column is the route: a hash of the command, or of the steps that are left of a chain
-- (bugle.route, spelled out here because an INSERT would have to be allowed to call it). It comes before the order,
-- so that a worker never reads over a million waiting jobs that it does not serve. Jobs with a key are in the indexes
-- below: a scan for jobs without keys would read over all that are blocked by theirs.
create index jobs_live_claimable on bugle.jobs_live (
  queue, coalesce(hash_array_extended(steps[coalesce(step, 0) + 1:], 0), hashtextextended(command, 0)),
  priority, run_at, id)
  where state = 'ready' and fair_key is null and order_key is null and limit_key is null;
create index jobs_live_keyed on bugle.jobs_live (
  queue, coalesce(hash_array_extended(steps[coalesce(step, 0) + 1:], 0), hashtextextended(command, 0)),
  priority, run_at, id)
  where state = 'ready' and fair_key is null and (order_key is not null or limit_key is not null);

-- Claims step from key to key by the next three indexes. Each step compares every entry on the rest of a page: as
-- text, in the order of the database's language, that was most of its cost. Hashes compare as numbers, and the order
-- of keys does not matter.
--
-- Of each fair key first the jobs that have no other key.
create index jobs_live_fair on bugle.jobs_live (
  hashtextextended(queue, 0),
  coalesce(hash_array_extended(steps[coalesce(step, 0) + 1:], 0), hashtextextended(command, 0)),
  hashtextextended(fair_key, 0), (order_key is not null or limit_key is not null), priority, run_at, id)
  where state = 'ready' and fair_key is not null;
create index jobs_live_limited on bugle.jobs_live (
  hashtextextended(queue, 0),
  coalesce(hash_array_extended(steps[coalesce(step, 0) + 1:], 0), hashtextextended(command, 0)),
  hashtextextended(limit_key, 0), priority, run_at, id)
  where state = 'ready' and limit_key is not null;
-- Of each order key first the running job, then those that may block it (retrying, paused, waiting, postponed), then
-- the ready ones. If the first one is ready, nothing blocks it. A job that has never started and waits for its time or
-- for other jobs blocks nothing.
create index jobs_live_ordered on bugle.jobs_live (
  hashtextextended(queue, 0), hashtextextended(order_key, 0),
  (case state when 'running' then 0 when 'ready' then 2 else 1 end), id)
  where order_key is not null and (state not in ('scheduled', 'waiting') or first_started_at is not null);

-- With "like", so that only queries that call bugle.is_running use it: sql/01_sets.sql explains why.
create index jobs_live_running on bugle.jobs_live (worker) where state like 'running';

-- With the columns that are counted, so that counting fetches no rows.
create index jobs_live_due on bugle.jobs_live (run_at) include (queue, state) where state in ('scheduled', 'retrying');
create index jobs_live_deadline on bugle.jobs_live (deadline) where deadline is not null and state <> 'running';
create index jobs_live_answer_due on bugle.jobs_live (answer_by) where state = 'waiting';
create index jobs_live_paused on bugle.jobs_live (queue) where state = 'paused';

-- Live jobs only: two jobs with the same key can be in history.
create unique index jobs_live_unique_key on bugle.jobs_live (command, unique_key) where unique_key is not null;

-- Outlives the job it names. No foreign key: bugle.jobs is partitioned by state, and a job may be dropped before its
-- key.
create table bugle.idempotency_keys (
  command text not null,
  key text not null,
  job bigint not null,
  expires_at timestamptz not null,
  primary key (command, key)
);

comment on table bugle.idempotency_keys is
  'Which job was enqueued under which idempotency_key, until the key expires. Written with the job.';
comment on column bugle.idempotency_keys.command is 'bugle.jobs.command.';
comment on column bugle.idempotency_keys.key is 'bugle.jobs.idempotency_key.';
comment on column bugle.idempotency_keys.job is 'bugle.jobs.id. The job may be gone already.';
comment on column bugle.idempotency_keys.expires_at is 'From then on the key can be used again.';

create index idempotency_keys_expires_at on bugle.idempotency_keys (expires_at);
