-- Which days of history exist, and what happened in each failed attempt.

-- One row for each day's leaf of jobs_ended and jobs_failed. A completion looks here for the newest day that exists, so
-- that it never fails for want of a partition.
create table bugle.history_days (
  kind text not null,
  day date not null,
  leaf name not null,
  retired_at timestamptz,
  primary key (kind, day),
  constraint kind_is_known check (kind in ('ended', 'failed'))
);

create table bugle.attempts (
  job bigint not null,
  claim bigint not null,
  attempt integer not null,
  worker bigint,
  started_at timestamptz,
  ended_at timestamptz not null default now(),
  code text,
  error text,
  primary key (job, claim)
);

create index attempts_ended_at on bugle.attempts using brin (ended_at) with (pages_per_range = 32, autosummarize = on);
