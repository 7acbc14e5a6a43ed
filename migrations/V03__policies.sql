-- How often and when a failed job is tried again, and what is set once for a command or a queue instead of in every job.

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
    case kind when 'daily' then per_day is not null and days is not null else per_day is null and days is null end),
  constraint daily_counts_are_sane check (per_day between 1 and 10000 and days between 1 and 3650)
);

insert into bugle.retry_policies (name, kind, retries, delay, factor, max_delay, jitter, per_day, days) values
  ('default', 'exponential', 15, '5 seconds', 2, '1 hour', 0.1, null, null),
  ('none', 'fixed', 0, '0', 1, '0', 0, null, null),
  ('fixed', 'fixed', 15, '1 minute', 1, '1 hour', 0.1, null, null),
  ('exponential', 'exponential', 15, '5 seconds', 2, '1 hour', 0.1, null, null),
  ('fixed_then_exponential', 'fixed_then_exponential', 15, '5 seconds', 2, '1 hour', 0.1, null, null),
  ('endless', 'endless', null, '5 seconds', 2, '1 hour', 0.1, null, null),
  ('daily', 'daily', null, '10 minutes', 1, '1 hour', 0.1, 3, 2);

create table bugle.commands (
  name text primary key,
  retry_policy text references bugle.retry_policies (name),
  max_attempts integer,
  timeout interval,
  constraint name_is_short check (length(name) between 1 and 200),
  constraint max_attempts_is_positive check (max_attempts > 0),
  constraint timeout_is_positive check (timeout > '0')
);

create table bugle.queues (
  name text primary key,
  synchronous_claims boolean not null default false,
  paused_at timestamptz,
  constraint name_is_short check (length(name) between 1 and 100)
);

-- One row; typed columns instead of names and values, so that a wrong setting is refused when it is written.
create table bugle.settings (
  only_row boolean primary key default true,
  max_payload_bytes integer not null default 1048576,
  keep_completed boolean not null default true,
  ended_days integer not null default 3,
  failed_days integer not null default 30,
  crash_limit integer not null default 3,
  lost_grace interval not null default '1200 milliseconds',
  lease interval not null default '30 seconds',
  constraint there_is_one_row check (only_row),
  constraint payload_limit_is_sane check (max_payload_bytes between 8192 and 134217728),
  constraint ended_days_are_sane check (ended_days between 0 and 3650),
  constraint failed_days_are_sane check (failed_days between 0 and 3650),
  constraint crash_limit_is_positive check (crash_limit > 0),
  constraint lost_grace_is_sane check (lost_grace between '0' and '1 hour'),
  constraint lease_is_sane check (lease between '2 seconds' and '1 day')
);

insert into bugle.settings default values;
