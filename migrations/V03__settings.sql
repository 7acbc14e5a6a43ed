-- Settings: how failed jobs are retried, and what is set once for a command, a queue or everything instead of in each
-- job. The rows that a new database has are in sql/98_rows.sql.

create table bugle.retry_policies (
  name text primary key,
  kind text not null default 'exponential',
  retries integer default 15,
  delay interval not null default '5 seconds',
  factor double precision not null default 2,
  max_delay interval not null default '1 hour',
  jitter double precision not null default 0.1,
  per_day integer,
  days integer,
  constraint name_is_short check (length(name) between 1 and 100),
  constraint kind_is_known check (kind in ('fixed', 'exponential', 'fixed_then_exponential', 'endless', 'daily')),
  constraint retries_are_counted_unless_endless_or_daily check (
    (kind in ('endless', 'daily')) = (retries is null)),
  constraint retries_are_not_negative check (retries >= 0),
  constraint delay_is_not_negative check (delay between '0' and '10 years'),
  constraint max_delay_is_not_negative check (max_delay between '0' and '10 years'),
  constraint factor_grows check (factor between 1 and 1000),
  constraint jitter_is_a_share check (jitter between 0 and 1),
  constraint daily_policies_count_days check (
    case kind when 'daily' then per_day is not null else per_day is null and days is null end),
  constraint daily_counts_are_sane check (per_day between 1 and 10000 and days between 1 and 3650)
);

comment on table bugle.retry_policies is
  'How often and when a failed job is retried. Insert rows of your own; the row "default" applies to jobs that '
  'name none.';
comment on column bugle.retry_policies.name is 'The name that jobs and commands refer to.';
comment on column bugle.retry_policies.kind is
  'fixed, exponential, fixed_then_exponential (after three fixed ones), endless (exponential) or daily.';
comment on column bugle.retry_policies.retries is 'Number of retries. Null for endless and daily policies.';
comment on column bugle.retry_policies.delay is 'The first delay; for fixed and daily policies, every delay.';
comment on column bugle.retry_policies.factor is 'By how much an exponential delay grows each time.';
comment on column bugle.retry_policies.max_delay is 'Where an exponential delay stops growing.';
comment on column bugle.retry_policies.jitter is
  'Fraction by which each delay varies randomly in both directions, after max_delay was applied: 0.1 is ten percent.';
comment on column bugle.retry_policies.per_day is 'For daily policies: retries per day.';
comment on column bugle.retry_policies.days is
  'For daily policies: on how many days, counted from the first attempt. Null: two.';

create table bugle.commands (
  name text primary key,
  queue text,
  priority integer,
  delay interval,
  unique_payload boolean not null default false,
  unique_for interval,
  unique_mode text,
  required_keys text[],
  on_success text,
  on_failure text,
  steps text[],
  deadline interval,
  headers jsonb,
  idempotency_ttl interval,
  order_key jsonpath,
  limit_key jsonpath,
  fair_key jsonpath,
  timeout interval,
  retry_policy text references bugle.retry_policies (name),
  max_attempts integer,
  step_retry_policy text references bugle.retry_policies (name),
  retry_when jsonpath,
  wait_when jsonpath,
  max_running integer,
  -- whether there is anything to do when a job is inserted; the other columns are read when it is claimed, or fails
  is_template boolean not null generated always as (
    queue is not null or priority is not null or delay is not null or unique_payload or unique_for is not null
    or required_keys is not null
    or on_success is not null or on_failure is not null or deadline is not null or headers is not null
    or order_key is not null or limit_key is not null or fair_key is not null) stored,
  constraint name_is_short check (length(name) between 1 and 200 and btrim(name, e' \t\n\r') <> ''),
  constraint queue_is_short check (length(queue) between 1 and 100 and btrim(queue, e' \t\n\r') <> ''),
  constraint delay_is_not_negative check (delay between '0' and '10 years'),
  constraint unique_for_is_of_a_unique_payload check (
    unique_for is null or (unique_for > '0' and unique_for <= '10 years' and unique_payload)),
  constraint unique_mode_is_known check (unique_mode in ('keep', 'replace', 'move')),
  constraint required_keys_are_named check (
    cardinality(required_keys) > 0 and array_position(required_keys, null) is null),
  constraint on_success_is_short check (length(on_success) between 1 and 200),
  constraint on_failure_is_short check (length(on_failure) between 1 and 200),
  -- a command that follows its own failure would never end
  constraint on_failure_is_another_command check (on_failure <> name),
  constraint steps_are_named check (
    cardinality(steps) between 1 and 100 and array_ndims(steps) = 1 and array_position(steps, null) is null),
  constraint deadline_is_positive check (deadline > '0' and deadline <= '10 years'),
  constraint headers_are_an_object check (jsonb_typeof(headers) = 'object'),
  constraint idempotency_ttl_is_positive check (idempotency_ttl > '0' and idempotency_ttl <= '10 years'),
  constraint timeout_is_positive check (timeout > '0'),
  constraint max_attempts_is_positive check (max_attempts > 0),
  constraint max_running_is_positive check (max_running > 0)
);

comment on table bugle.commands is
  'Defaults and limits of a command, so that jobs need not set them. A command needs no row here.';
comment on column bugle.commands.name is 'bugle.jobs.command.';
comment on column bugle.commands.queue is 'For jobs that leave it out, or give default.';
comment on column bugle.commands.priority is 'For jobs that leave it out, or give 0.';
comment on column bugle.commands.delay is 'Jobs that give no run_at are due this long after they were enqueued.';
comment on column bugle.commands.unique_payload is
  'True: at most one live job has the same payload. Its hash is the unique_key of jobs that have none.';
comment on column bugle.commands.unique_for is
  'With unique_payload: for this long after a job has ended, no other job with the same payload is enqueued.';
comment on column bugle.commands.unique_mode is
  'What bugle.enqueue does to a live job with the same unique_key: keep, replace (its payload) or move (its '
  'run_at). Null: keep.';
comment on column bugle.commands.required_keys is 'The payload must be an object with these keys.';
comment on column bugle.commands.on_success is
  'The command that is enqueued when a job of this one is completed, unless the job names another.';
comment on column bugle.commands.on_failure is
  'The command that is enqueued when a job of this one has failed, unless the job names another.';
comment on column bugle.commands.steps is 'Makes jobs of this command chains that have no steps of their own.';
comment on column bugle.commands.deadline is
  'Jobs that give no deadline must be started within this time after they are due. Null: as settings.default_deadline.';
comment on column bugle.commands.headers is 'Headers of every job; headers of the job take precedence.';
comment on column bugle.commands.idempotency_ttl is
  'For jobs that give none. Null: as settings.default_idempotency_ttl.';
comment on column bugle.commands.order_key is
  'Where in the payload the order_key of jobs that give none is found, for example $.account.';
comment on column bugle.commands.limit_key is
  'Where in the payload the limit_key of jobs that give none is found, for example $.tenant.';
comment on column bugle.commands.fair_key is
  'Where in the payload the fair_key of jobs that give none is found, for example $.tenant.';
comment on column bugle.commands.timeout is 'For jobs that have none.';
comment on column bugle.commands.retry_policy is 'For jobs that name none.';
comment on column bugle.commands.max_attempts is 'For jobs that give no number; comes before the policy''s.';
comment on column bugle.commands.step_retry_policy is
  'How it is retried in the same worker when it is a step of a chain. Null: the policy named step.';
comment on column bugle.commands.retry_when is
  'If a result matches this path, for example $.status == "busy", the attempt counts as failed, and is retried.';
comment on column bugle.commands.wait_when is
  'If a result matches this path, for example $.status == "accepted", the job waits for an answer from outside.';
comment on column bugle.commands.max_running is
  'How many of its jobs may run at once, in all queues together. Null: no limit.';
comment on column bugle.commands.is_template is
  'Whether the row affects new jobs, not only running ones.';

create index commands_templates on bugle.commands (name) where is_template;

create sequence bugle.templates;

create sequence bugle.conditions;

comment on sequence bugle.conditions is
  'Set once there has been a retry_when or wait_when in bugle.commands: only then do completions search for one.';

comment on sequence bugle.templates is
  'Set once there has been a template in bugle.commands: only then do enqueues search for one.';

create table bugle.queues (
  name text primary key,
  synchronous_claims boolean not null default false,
  paused_at timestamptz,
  max_running integer,
  max_running_per_key integer,
  max_starts integer,
  starts_period interval,
  max_starts_per_key integer,
  starts_per_key_period interval,
  order_on_retry text not null default 'block',
  is_limited boolean not null generated always as (
    max_running is not null or max_running_per_key is not null
    or max_starts is not null or max_starts_per_key is not null) stored,
  constraint name_is_short check (length(name) between 1 and 100 and btrim(name, e' \t\n\r') <> ''),
  constraint max_running_is_positive check (max_running > 0),
  constraint max_running_per_key_is_positive check (max_running_per_key > 0),
  constraint max_starts_is_positive check (max_starts > 0),
  constraint max_starts_per_key_is_positive check (max_starts_per_key > 0),
  constraint starts_are_counted_in_a_period check ((max_starts is null) = (starts_period is null)),
  constraint starts_per_key_are_counted_in_a_period check (
    (max_starts_per_key is null) = (starts_per_key_period is null)),
  constraint starts_period_is_sane check (starts_period between '10 milliseconds' and '366 days'),
  constraint starts_per_key_period_is_sane check (starts_per_key_period between '10 milliseconds' and '366 days'),
  constraint order_on_retry_is_known check (order_on_retry in ('block', 'pass'))
);

comment on table bugle.queues is 'Settings of a queue. A queue needs no row here.';
comment on column bugle.queues.name is 'bugle.jobs.queue.';
comment on column bugle.queues.synchronous_claims is
  'Wait for the disk at each claim. Otherwise a crash of the server may lose the last claims, and their jobs start '
  'again.';
comment on column bugle.queues.paused_at is 'Since when nothing is claimed from this queue; null if it is not paused.';
comment on column bugle.queues.max_running is 'How many of its jobs may run at once, over all workers. Null: no limit.';
comment on column bugle.queues.max_running_per_key is
  'How many jobs of each limit_key may run at once. Null: no limit.';
comment on column bugle.queues.max_starts is 'How many of its jobs may start in any starts_period. Null: no limit.';
comment on column bugle.queues.starts_period is 'The period of max_starts; it slides.';
comment on column bugle.queues.max_starts_per_key is
  'How many jobs of each limit_key may start in any starts_per_key_period. Null: no limit.';
comment on column bugle.queues.starts_per_key_period is 'The period of max_starts_per_key; it slides.';
comment on column bugle.queues.order_on_retry is
  'Whether the other jobs of an order_key wait behind one that is retried, paused or waiting (block) or not (pass).';
comment on column bugle.queues.is_limited is 'Whether claims have to count running jobs or starts.';

-- One row; typed columns instead of names and values, so that a wrong setting is rejected when it is written.
create table bugle.settings (
  only_row boolean primary key default true,
  max_payload_bytes integer not null default 1048576,
  keep_completed boolean not null default true,
  ended_days integer not null default 3,
  failed_days integer not null default 30,
  stats_days integer not null default 7,
  crash_limit integer not null default 3,
  lost_grace interval not null default '1200 milliseconds',
  lease interval not null default '30 seconds',
  step_timeout interval not null default '5 minutes',
  chain_timeout interval not null default '30 minutes',
  default_deadline interval,
  default_idempotency_ttl interval not null default '24 hours',
  unserved_limit interval,
  known_commands_only boolean not null default false,
  redacted_paths text[] not null default '{}',
  shared_unique_keys boolean not null default false,
  default_timeout interval,
  constraint there_is_one_row check (only_row),
  constraint payload_limit_is_sane check (max_payload_bytes between 8192 and 134217728),
  constraint ended_days_are_sane check (ended_days between 0 and 3650),
  constraint failed_days_are_sane check (failed_days between 0 and 3650),
  constraint stats_days_are_sane check (stats_days between 0 and 3650),
  constraint crash_limit_is_positive check (crash_limit > 0),
  constraint lost_grace_is_sane check (lost_grace between '0' and '1 hour'),
  constraint lease_is_sane check (lease between '2 seconds' and '1 day'),
  constraint step_timeout_is_positive check (step_timeout > '0' and step_timeout <= '10 years'),
  constraint chain_timeout_is_positive check (chain_timeout > '0' and chain_timeout <= '10 years'),
  constraint default_deadline_is_positive check (default_deadline > '0' and default_deadline <= '10 years'),
  constraint default_idempotency_ttl_is_positive check (
    default_idempotency_ttl > '0' and default_idempotency_ttl <= '10 years'),
  constraint default_timeout_is_positive check (default_timeout > '0' and default_timeout <= '10 years'),
  constraint unserved_limit_is_positive check (unserved_limit > '0' and unserved_limit <= '10 years'),
  constraint redacted_paths_are_paths check (
    redacted_paths = '{}'
    or array_position(redacted_paths, null) is null
      and '.' || array_to_string(redacted_paths, '.') || '.' not like '%..%'
      and array_to_string(redacted_paths, '|') || '|' not like '%**|%')
);

comment on table bugle.settings is 'Settings of the whole schema: one row. Change it with UPDATE.';
comment on column bugle.settings.only_row is 'Always true: there is one row.';
comment on column bugle.settings.max_payload_bytes is 'A larger payload is rejected.';
comment on column bugle.settings.keep_completed is
  'False: completed jobs are deleted at once instead of kept in history.';
comment on column bugle.settings.ended_days is 'How many full days completed and cancelled jobs are kept.';
comment on column bugle.settings.failed_days is 'How many full days failed jobs are kept.';
comment on column bugle.settings.stats_days is 'How many full days bugle.minutes are kept.';
comment on column bugle.settings.crash_limit is
  'A job whose worker was lost this many times fails: it may be the cause.';
comment on column bugle.settings.lost_grace is
  'How long a worker whose connection broke may take to come back before its jobs are rescued.';
comment on column bugle.settings.lease is 'How long a connected worker may be silent before it is considered frozen.';
comment on column bugle.settings.step_timeout is
  'How long one attempt of a step may take, if neither its command nor its executor sets a time.';
comment on column bugle.settings.chain_timeout is
  'How long a chain may run in one worker, if neither the job nor its command sets a time.';
comment on column bugle.settings.default_deadline is
  'Within what time after it is due a job must be started, if neither it nor its command sets one. Null: any time.';
comment on column bugle.settings.default_idempotency_ttl is
  'How long an idempotency_key is remembered, if neither the job nor its command sets a time.';
comment on column bugle.settings.unserved_limit is
  'A ready job that no worker has served for this long fails with no_executor. Null: it waits.';
comment on column bugle.settings.shared_unique_keys is
  'True: an enqueue by unique_key may replace or move a job that another login enqueued.';
comment on column bugle.settings.default_timeout is
  'How long one attempt may take, if neither the job, its command nor its executor sets a time. Null: no limit.';
comment on column bugle.settings.known_commands_only is
  'True: a new job is rejected if it names a command, step or follow-up that has no row in bugle.commands.';
comment on column bugle.settings.redacted_paths is
  'Values of payloads, contexts, results, answers and headers that are never shown, and not kept in errors: '
  'card.number, customers.*.phone, **.password.';
