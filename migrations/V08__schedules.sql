-- Recurring jobs: what is enqueued again and again, and which of its times have been dealt with.

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
  headers jsonb,
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
  constraint name_is_short check (length(name) between 1 and 100),
  constraint a_schedule_has_a_cron_or_an_interval check (num_nonnulls(cron, every) = 1),
  constraint misfire_is_known check (misfire in ('skip', 'run_once', 'catch_up')),
  constraint catch_up_limit_is_sane check (catch_up_limit between 1 and 1000),
  constraint overlap_is_known check (overlap in ('allow', 'skip')),
  constraint a_schedule_ends_after_it_starts check (ends_at >= starts_at)
) with (fillfactor = 70);

create index schedules_due on bugle.schedules (next_at) where paused_at is null;

-- One row for each slot that was dealt with. Its primary key is what makes a slot fire once, however many workers believe
-- that it is their turn. Not tied to bugle.schedules: a schedule that is removed and added again does not repeat a slot.
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

create index schedule_runs_enqueued_at on bugle.schedule_runs using brin (enqueued_at) with (pages_per_range = 32, autosummarize = on);

-- A cron expression as the engine reads it: the values each field allows, in order.
create type bugle.cron as (
  seconds integer[],
  minutes integer[],
  hours integer[],
  days integer[],
  months integer[],
  weekdays integer[],
  either_day boolean,
  every_hour boolean
);

alter table bugle.changes add column schedule text;
alter table bugle.changes drop constraint a_change_is_about_something;
alter table bugle.changes add constraint a_change_is_about_something check (num_nonnulls(job, queue, worker, schedule) = 1);
