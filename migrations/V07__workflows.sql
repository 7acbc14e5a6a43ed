-- Workflows: jobs that wait for other jobs, and the names a workflow gives to its jobs.

-- The outcome is kept here: history may be dropped, or not be kept at all, before the waiting job starts. No foreign
-- keys: bugle.jobs is partitioned by state.
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

comment on table bugle.dependencies is
  'One row for each job that another waits, or has waited, for. Its outcome stays readable while the other is kept.';
comment on column bugle.dependencies.job is 'The job that waits: bugle.jobs.id.';
comment on column bugle.dependencies.needs is 'The job it waits for.';
comment on column bugle.dependencies.name is 'What the workflow calls the needed job.';
comment on column bugle.dependencies.on_failure is
  'What happens to the waiting job if the needed one fails or is cancelled: fail, or run anyway.';
comment on column bugle.dependencies.child is 'Whether the waiting job''s executor spawned the needed one.';
comment on column bugle.dependencies.state is 'How the needed job ended. Null: it has not.';
comment on column bugle.dependencies.reason is 'The reason it ended, if it did not complete.';
comment on column bugle.dependencies.result is 'Its result.';
comment on column bugle.dependencies.error is 'Its error, if it did not complete.';
comment on column bugle.dependencies.ended_at is 'When it ended, or was found to have.';
comment on column bugle.dependencies.created_at is 'Since when one waits for the other.';

create index dependencies_needs on bugle.dependencies (needs);
create index dependencies_created_at on bugle.dependencies
  using brin (created_at) with (pages_per_range = 32, autosummarize = on);

create table bugle.workflow_jobs (
  job bigint primary key,
  workflow bigint not null,
  name text not null,
  created_at timestamptz not null default now()
);

comment on table bugle.workflow_jobs is
  'The names that workflows gave to their jobs. bugle.workflow(id) shows them with their states.';
comment on column bugle.workflow_jobs.job is 'bugle.jobs.id.';
comment on column bugle.workflow_jobs.workflow is 'The same for all jobs of a workflow: the smallest of their ids.';
comment on column bugle.workflow_jobs.name is 'What the workflow calls it.';
comment on column bugle.workflow_jobs.created_at is 'When it was enqueued.';

create index workflow_jobs_workflow on bugle.workflow_jobs (workflow);
create index workflow_jobs_created_at on bugle.workflow_jobs
  using brin (created_at) with (pages_per_range = 32, autosummarize = on);
