-- Jobs that wait for other jobs: who needs whom and what came of it, the names a workflow gives to its jobs, and what a
-- command has enqueued when a job of it ends.

-- One row for each job that another waits, or has waited, for. What came of it is kept here: history may be dropped, or not be
-- kept at all, before the other starts. No foreign keys: bugle.jobs is partitioned by state.
create table bugle.dependencies (
  job bigint not null,
  needs bigint not null,
  name text,
  on_failure text not null default 'fail',
  child boolean not null default false,
  state text,
  reason text,
  result jsonb,
  error text,
  ended_at timestamptz,
  created_at timestamptz not null default now(),
  primary key (job, needs),
  constraint on_failure_is_known check (on_failure in ('fail', 'run')),
  constraint what_ended_says_when check ((state is null) = (ended_at is null))
) with (fillfactor = 70);

create index dependencies_needs on bugle.dependencies (needs);
create index dependencies_created_at on bugle.dependencies using brin (created_at) with (pages_per_range = 32, autosummarize = on);

create table bugle.workflow_jobs (
  job bigint primary key,
  workflow bigint not null,
  name text not null,
  created_at timestamptz not null default now()
);

create index workflow_jobs_workflow on bugle.workflow_jobs (workflow);
create index workflow_jobs_created_at on bugle.workflow_jobs using brin (created_at) with (pages_per_range = 32, autosummarize = on);

-- What is to be known about a job that has just ended. Passed on, not looked up: its row may be gone already.
create type bugle.followed as (
  id bigint,
  state text,
  reason text,
  command text,
  queue text,
  headers jsonb,
  watched boolean,
  on_success text,
  on_failure text,
  result jsonb,
  error text
);

-- A generated column cannot be given another expression: it is made anew, and its index with it.
alter table bugle.commands
  add column on_success text,
  add column on_failure text,
  add constraint on_success_is_short check (length(on_success) between 1 and 200),
  add constraint on_failure_is_short check (length(on_failure) between 1 and 200),
  -- a command that follows its own failure would never come to rest
  add constraint on_failure_is_another_command check (on_failure <> name),
  drop column is_template;

alter table bugle.commands
  add column is_template boolean not null generated always as (
    queue is not null or priority is not null or delay is not null or unique_payload or required_keys is not null
    or on_success is not null or on_failure is not null) stored;

create index commands_templates on bugle.commands (name) where is_template;
