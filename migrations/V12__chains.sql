-- Chains: jobs made of steps, and what became of each step.

-- What is left to do of chains that wait to be claimed: one row for each chain and each of its ends (a, b, c; b, c; c). A worker
-- looks here for what it could take up, by the last step, which is in every end. Nothing here is unique: whoever enqueues the
-- first job of a chain would make all others wait for its transaction. A row too many does no harm, and is pruned.
create table bugle.chains (
  id bigint generated always as identity primary key,
  command text not null,
  steps text[] not null,
  last_step text not null,
  key bigint not null generated always as (hash_array_extended(steps, 0)) stored
);

create index chains_command on bugle.chains (command, key);
create index chains_last_step on bugle.chains (last_step);

-- The claim's index for chains: by what is left of them, so that a worker never walks over those it cannot go on with.
create index jobs_live_claimable_chains
  on bugle.jobs_live (queue, hash_array_extended(steps[coalesce(step, 0) + 1:], 0), priority, id)
  where state = 'ready' and steps is not null;

-- Only steps that were begun, or set by an operator, have a row; people read the view bugle.steps. Those that an executor
-- makes as it goes come behind the steps of the chain, and know in which of them they were made (0: in no chain).
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

create unique index step_records_within on bugle.step_records (job, within, name) where within is not null;
create index step_records_updated_at on bugle.step_records using brin (updated_at) with (pages_per_range = 32, autosummarize = on);

insert into bugle.retry_policies (name, kind, retries, delay, factor, max_delay, jitter)
values ('step', 'exponential', 3, '1 second', 2, '1 minute', 0.1)
on conflict do nothing;

alter table bugle.commands
  add column step_retry_policy text references bugle.retry_policies (name),
  add column steps text[],
  add constraint steps_are_named check (
    cardinality(steps) between 1 and 100 and array_ndims(steps) = 1 and array_position(steps, null) is null);

alter table bugle.settings
  add column step_timeout interval not null default '5 minutes',
  add column chain_timeout interval not null default '30 minutes',
  add constraint step_timeout_is_positive check (step_timeout > '0' and step_timeout <= '10 years'),
  add constraint chain_timeout_is_positive check (chain_timeout > '0' and chain_timeout <= '10 years');

alter table bugle.changes add column step integer;
