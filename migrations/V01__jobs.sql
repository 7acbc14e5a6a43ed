-- One table for the user, a few behind it.
--
-- bugle.jobs is what people insert into and select from. It is partitioned by state, so that the hot part stays as small
-- as the backlog: live jobs in jobs_live, which has every index the engine needs, and finished ones in history tables
-- that are partitioned again by UTC day, because they leave by the day.

create sequence bugle.job_ids as bigint;

create table bugle.jobs (
  -- not an identity column: those are not inherited by partitions before PostgreSQL 17
  id bigint not null default nextval('bugle.job_ids'),
  state text not null default 'ready',
  command text not null,
  payload jsonb not null default '{}',
  queue text not null default 'default',
  priority integer not null default 0,
  run_at timestamptz not null default now(),
  deadline timestamptz,
  timeout interval,
  max_attempts integer,
  retry_policy text,
  headers jsonb,
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
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  first_started_at timestamptz,
  started_at timestamptz,
  finished_at timestamptz,
  day date,
  constraint state_is_known check (state in (
    'scheduled', 'ready', 'running', 'retrying', 'paused', 'waiting', 'completed', 'failed', 'cancelled')),
  constraint running_jobs_have_a_claim check (
    state <> 'running' or (claim > 0 and attempt > 0 and worker is not null and started_at is not null)),
  constraint finished_jobs_say_when check (
    (state in ('completed', 'failed', 'cancelled')) = (finished_at is not null)),
  constraint paused_jobs_know_where_they_were check ((state = 'paused') = (paused_from is not null)),
  constraint failed_jobs_say_why check (state <> 'failed' or reason is not null)
) partition by list (state);

create table bugle.jobs_live
  partition of bugle.jobs for values in ('scheduled', 'ready', 'running', 'retrying', 'paused', 'waiting')
  -- Every job leaves two dead rows here. Vacuum by count, not by share of the table: a share of an almost empty table
  -- is nothing, a share of ten million is too late.
  with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.1, autovacuum_analyze_threshold = 10000);

alter table bugle.jobs_live add constraint jobs_live_pkey primary key (id);

-- The claim's index. The command is in front of the order, so that a worker which serves one command never walks over a
-- million waiting jobs of another.
create index jobs_live_claimable on bugle.jobs_live (queue, command, priority, id) where state = 'ready';

create index jobs_live_due on bugle.jobs_live (run_at) where state in ('scheduled', 'retrying');

create index jobs_live_deadline on bugle.jobs_live (deadline) where deadline is not null and state <> 'running';

-- Spelled with "like", so that only queries which mean this index (rescue, attach, running_jobs) enter by it. Statistics taken
-- while nothing ran promise that it is empty, and a completion that believed them compared every running job with every
-- finished one: 1,000 jobs/s instead of 20,000.
create index jobs_live_running on bugle.jobs_live (worker) where state like 'running';

create index jobs_live_answer_due on bugle.jobs_live (answer_by) where state = 'waiting';

create table bugle.jobs_ended
  partition of bugle.jobs for values in ('completed', 'cancelled')
  partition by list (day);

create table bugle.jobs_failed
  partition of bugle.jobs for values in ('failed')
  partition by list (day);

-- Where a final state inserted by hand lands: the engine always names a day. Both refuse every row (10_enqueue.sql).
create table bugle.jobs_ended_by_hand partition of bugle.jobs_ended for values in (null);
create table bugle.jobs_failed_by_hand partition of bugle.jobs_failed for values in (null);
