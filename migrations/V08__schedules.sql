-- Schedules: recurring jobs, and which of their slots have been handled.

create table bugle.schedules (
  name text primary key,
  cron text,
  every interval,
  timezone text not null default 'UTC',
  command text not null,
  payload jsonb not null default '{}',
  queue text not null default 'default',
  priority integer not null default 0,
  timeout interval,
  max_attempts integer,
  retry_policy text,
  retry_delay interval,
  headers jsonb,
  steps text[],
  misfire text not null default 'run_once',
  catch_up_limit integer not null default 10,
  overlap text not null default 'allow',
  starts_at timestamptz,
  ends_at timestamptz,
  paused_at timestamptz,
  next_at timestamptz,
  last_at timestamptz,
  last_job bigint,
  last_error text,
  created_at timestamptz not null default now(),
  constraint name_is_short check (length(name) between 1 and 100 and btrim(name, e' \t\n\r') <> ''),
  constraint a_schedule_has_a_cron_or_an_interval check (num_nonnulls(cron, every) = 1),
  constraint every_is_a_fixed_time check (extract(year from every) = 0 and extract(month from every) = 0),
  constraint every_is_sane check (every between '1 second' and '3650 days'),
  constraint misfire_is_known check (misfire in ('skip', 'run_once', 'catch_up')),
  constraint catch_up_limit_is_sane check (catch_up_limit between 1 and 1000),
  constraint overlap_is_known check (overlap in ('allow', 'skip')),
  constraint a_schedule_ends_after_it_starts check (
    isfinite(starts_at) and isfinite(ends_at) and ends_at >= starts_at),
  constraint headers_are_an_object check (jsonb_typeof(headers) = 'object')
) with (fillfactor = 70);

comment on table bugle.schedules is
  'Recurring jobs: by a cron expression in a time zone, or by an interval. Inserted by people.';
comment on column bugle.schedules.name is 'Identifies it in all functions, and in the header "schedule" of its jobs.';
comment on column bugle.schedules.cron is
  'When: 5 fields (minute hour day-of-month month day-of-week), 6 with the second first, or @daily etc.';
comment on column bugle.schedules.every is
  'When: the interval between slots, counted from starts_at or created_at without drift. Either this or cron.';
comment on column bugle.schedules.timezone is 'The time zone of cron.';
comment on column bugle.schedules.command is 'What its jobs do.';
comment on column bugle.schedules.payload is 'The data of its jobs.';
comment on column bugle.schedules.queue is 'The queue its jobs wait in.';
comment on column bugle.schedules.priority is 'The priority of its jobs; smaller values run first.';
comment on column bugle.schedules.timeout is 'How long one attempt of a job may take.';
comment on column bugle.schedules.max_attempts is 'How often a job is attempted: retries plus one.';
comment on column bugle.schedules.retry_policy is 'How a job is retried: bugle.retry_policies.name.';
comment on column bugle.schedules.retry_delay is 'How long a job waits before its first retry: bugle.jobs.retry_delay.';
comment on column bugle.schedules.headers is
  'Names and values that are passed along with its jobs, besides schedule and slot.';
comment on column bugle.schedules.steps is 'Makes its jobs chains: the commands of their steps, in order.';
comment on column bugle.schedules.misfire is
  'Of slots that were missed: skip them, run_once for all of them, or catch_up one by one.';
comment on column bugle.schedules.catch_up_limit is 'With catch_up: how many at most, the newest.';
comment on column bugle.schedules.overlap is 'While an earlier job has not ended: allow another one, or skip the slot.';
comment on column bugle.schedules.starts_at is 'No slot lies before this.';
comment on column bugle.schedules.ends_at is 'No slot lies after this.';
comment on column bugle.schedules.paused_at is 'Since when it fires nothing; null if it is not paused.';
comment on column bugle.schedules.next_at is 'When it fires next; null if never again.';
comment on column bugle.schedules.last_at is 'The slot that fired last.';
comment on column bugle.schedules.last_job is 'The job that was enqueued last: bugle.jobs.id.';
comment on column bugle.schedules.last_error is 'Why its last slot could not be fired; null once one could.';
comment on column bugle.schedules.created_at is 'When it was added.';

create index schedules_due on bugle.schedules (next_at) where paused_at is null;

-- The primary key is what makes a slot fire once, however many workers believe that it is due. Not tied to
-- bugle.schedules: a schedule that is removed and added again does not repeat a slot.
create table bugle.schedule_runs (
  schedule text not null,
  slot timestamptz not null,
  job bigint,
  skipped text,
  enqueued_at timestamptz not null default now(),
  primary key (schedule, slot),
  constraint a_run_has_a_job_or_says_why_not check (num_nonnulls(job, skipped) = 1),
  constraint skipped_is_known check (skipped in ('late', 'overlap', 'error'))
);

comment on table bugle.schedule_runs is
  'Which slots of schedules have been handled: at most one job for each. Kept as long as history.';
comment on column bugle.schedule_runs.schedule is 'bugle.schedules.name.';
comment on column bugle.schedule_runs.slot is 'The scheduled time.';
comment on column bugle.schedule_runs.job is 'The job that was enqueued for it: bugle.jobs.id.';
comment on column bugle.schedule_runs.skipped is
  'Why there is no job: late (misfire = skip), overlap (overlap = skip) or error.';
comment on column bugle.schedule_runs.enqueued_at is 'When it was handled.';

create index schedule_runs_enqueued_at on bugle.schedule_runs
  using brin (enqueued_at) with (pages_per_range = 32, autosummarize = on);
