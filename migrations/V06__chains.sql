-- Chains: jobs made of steps, and what became of each step.

-- What is left of chains that wait to be claimed: one row for each chain and for what remains after each step (a, b, c;
-- b, c; c). A worker searches here for what it could continue, by the last step, which is in every end. Nothing here is
-- unique: the first job of a chain would make all other enqueuers of it wait for its transaction. A row too many does
-- no harm, and is pruned.
create table bugle.chains (
  id bigint generated always as identity primary key,
  command text not null,
  steps text[] not null,
  last_step text not null,
  route bigint not null generated always as (hash_array_extended(steps, 0)) stored
);

comment on table bugle.chains is
  'What is left of chains that are live: each chain, and what remains after each step. Workers search here for what '
  'they can continue.';
comment on column bugle.chains.id is 'Surrogate key; its order has no meaning.';
comment on column bugle.chains.command is 'The name of the chain: bugle.jobs.command.';
comment on column bugle.chains.steps is 'The steps that are left.';
comment on column bugle.chains.last_step is
  'The last of them: a worker that takes the chain needs an executor for it, wherever it continues.';
comment on column bugle.chains.route is 'A hash of the steps that are left, by which claims find the jobs.';
comment on sequence bugle.chains_id_seq is 'Gives bugle.chains.id.';

create index chains_command on bugle.chains (command, route);
create index chains_last_step on bugle.chains (last_step);

-- Only steps that were begun, or set by an operator, have a row; people read the view bugle.steps. Steps that an
-- executor records come behind those of the chain, and name the one in which they were recorded (0: the job is not a
-- chain).
create table bugle.step_records (
  job bigint not null,
  position integer not null,
  name text not null,
  within integer,
  state text not null,
  attempts integer not null default 0,
  attempts_before integer not null default 0,
  claim bigint,
  worker bigint,
  first_started_at timestamptz,
  last_started_at timestamptz,
  last_ended_at timestamptz,
  updated_at timestamptz not null default now(),
  code text,
  error text,
  output jsonb,
  primary key (job, position),
  constraint state_is_known check (state in ('pending', 'running', 'retrying', 'done', 'skipped', 'failed')),
  constraint positions_count_from_one check (position > 0),
  constraint name_is_short check (length(name) between 1 and 200)
) with (fillfactor = 70);

comment on table bugle.step_records is 'What became of the steps of jobs. People read the view bugle.steps.';
comment on column bugle.step_records.job is 'bugle.jobs.id.';
comment on column bugle.step_records.position is
  'Its position in the chain, from 1. Steps of an executor come behind those of the chain.';
comment on column bugle.step_records.name is 'The command of the step, or the name its executor gave it.';
comment on column bugle.step_records.within is
  'Null for a step of a chain; for one of an executor, in which step of the chain: 0 if the job is not a chain.';
comment on column bugle.step_records.state is
  'pending, running, retrying (it failed and is retried in the same worker), done, skipped or failed.';
comment on column bugle.step_records.attempts is 'How often it was attempted, in all attempts of the job.';
comment on column bugle.step_records.attempts_before is 'How often before the current claim.';
comment on column bugle.step_records.claim is 'The claim under which it was last begun.';
comment on column bugle.step_records.worker is 'The worker that last began it.';
comment on column bugle.step_records.first_started_at is 'When it was first begun.';
comment on column bugle.step_records.last_started_at is 'When it was last begun.';
comment on column bugle.step_records.last_ended_at is 'When its last attempt ended.';
comment on column bugle.step_records.updated_at is 'When this row last changed.';
comment on column bugle.step_records.code is 'The kind of its latest failure.';
comment on column bugle.step_records.error is 'Its latest error, at most 10,000 characters.';
comment on column bugle.step_records.output is 'Its output.';

create unique index step_records_within on bugle.step_records (job, within, name) where within is not null;
create index step_records_updated_at on bugle.step_records
  using brin (updated_at) with (pages_per_range = 32, autosummarize = on);
