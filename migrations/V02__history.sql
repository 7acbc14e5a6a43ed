-- History: finished jobs by the day, which days exist, and what happened in each failed attempt.

create table bugle.jobs_ended
  partition of bugle.jobs (
    constraint finished_jobs_say_when check (finished_at is not null))
  for values in ('completed', 'cancelled')
  partition by list (day);

comment on table bugle.jobs_ended is 'Part of bugle.jobs: completed and cancelled jobs, a leaf for each day.';

create table bugle.jobs_failed
  partition of bugle.jobs (
    constraint finished_jobs_say_when check (finished_at is not null),
    constraint failed_jobs_say_why check (reason is not null))
  for values in ('failed')
  partition by list (day);

comment on table bugle.jobs_failed is 'Part of bugle.jobs: failed jobs, the dead letters, a leaf for each day.';

-- Rows with a final state that are inserted by hand arrive here: the engine always sets a day. Both reject every row
-- (10_enqueue.sql). They have a primary key, because with a publication FOR ALL TABLES, Postgres rejects every UPDATE
-- and DELETE that names a table without one, even if it is empty.
create table bugle.jobs_ended_by_hand partition of bugle.jobs_ended (primary key (id)) for values in (null);

comment on table bugle.jobs_ended_by_hand is 'Always empty: rejects rows that are inserted directly in a final state.';

create table bugle.jobs_failed_by_hand partition of bugle.jobs_failed (primary key (id)) for values in (null);

comment on table bugle.jobs_failed_by_hand is 'Always empty: rejects rows that are inserted directly in a final state.';

-- One row for each day's leaf of jobs_ended and jobs_failed. A completion takes the newest day that exists, so that it
-- never fails for want of a partition.
create table bugle.history_days (
  kind text not null,
  day date not null,
  leaf name not null,
  retired_at timestamptz,
  primary key (kind, day),
  constraint kind_is_known check (kind in ('ended', 'failed'))
);

comment on table bugle.history_days is
  'The days of history that exist. A job that ends when its day is missing is kept with the newest one.';
comment on column bugle.history_days.kind is 'ended or failed.';
comment on column bugle.history_days.day is 'The day, in UTC.';
comment on column bugle.history_days.leaf is 'The table that holds its jobs.';
comment on column bugle.history_days.retired_at is 'When it was emptied; it is dropped once no session reads it.';

create table bugle.attempts (
  job bigint not null,
  claim bigint not null,
  attempt integer not null,
  worker bigint,
  started_at timestamptz,
  ended_at timestamptz not null default now(),
  outcome text not null default 'failed',
  times integer not null default 1,
  command text,
  code text,
  error text,
  primary key (job, claim)
);

comment on table bugle.attempts is
  'One row for each attempt that did not complete or cancel its job, as long as the job is kept.';
comment on column bugle.attempts.job is 'bugle.jobs.id.';
comment on column bugle.attempts.claim is 'The claim under which it ran.';
comment on column bugle.attempts.attempt is '1 for the first attempt.';
comment on column bugle.attempts.worker is 'bugle.workers.id.';
comment on column bugle.attempts.started_at is 'When it began.';
comment on column bugle.attempts.ended_at is 'When its outcome was reported, or its worker was declared lost.';
comment on column bugle.attempts.outcome is
  'failed, timed_out, rescued (its worker was lost), given_back, snoozed, or waiting (for an answer or for children).';
comment on column bugle.attempts.times is 'How often in a row: consecutive snoozes of a job are one row.';
comment on column bugle.attempts.command is 'The command of the job.';
comment on column bugle.attempts.code is 'A short code, where there is one: timeout, panic, worker_lost …';
comment on column bugle.attempts.error is 'The error, with its causes; at most 10,000 characters.';

create index attempts_by_end on bugle.attempts (ended_at);

-- Appended by the transactions that end jobs, so that none of them waits for another; merged by the keeper.
create table bugle.dead_letter_counts (
  id bigint generated always as identity primary key,
  queue text not null,
  reason text not null,
  jobs bigint not null
);

comment on table bugle.dead_letter_counts is 'How many jobs failed for good, for metrics. Never reset.';
comment on column bugle.dead_letter_counts.id is 'Surrogate key; its order has no meaning.';
comment on column bugle.dead_letter_counts.queue is 'bugle.jobs.queue.';
comment on column bugle.dead_letter_counts.reason is 'bugle.jobs.reason.';
comment on column bugle.dead_letter_counts.jobs is 'How many. The sum of all rows of a queue and reason is the count.';
comment on sequence bugle.dead_letter_counts_id_seq is 'Gives bugle.dead_letter_counts.id.';
