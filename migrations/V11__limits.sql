-- How many may run at once, how many may start in a while, and what must go one after another or by turns.

alter table bugle.queues
  add column max_running integer,
  add column max_running_per_key integer,
  add column max_starts integer,
  add column starts_period interval,
  add column max_starts_per_key integer,
  add column starts_per_key_period interval,
  add column order_on_retry text not null default 'block',
  add column is_limited boolean not null generated always as (
    max_running is not null or max_running_per_key is not null or max_starts is not null or max_starts_per_key is not null) stored,
  add constraint max_running_is_positive check (max_running > 0),
  add constraint max_running_per_key_is_positive check (max_running_per_key > 0),
  add constraint max_starts_is_positive check (max_starts > 0),
  add constraint max_starts_per_key_is_positive check (max_starts_per_key > 0),
  add constraint starts_are_counted_in_a_period check ((max_starts is null) = (starts_period is null)),
  add constraint starts_per_key_are_counted_in_a_period check ((max_starts_per_key is null) = (starts_per_key_period is null)),
  add constraint starts_period_is_sane check (starts_period between '10 milliseconds' and '366 days'),
  add constraint starts_per_key_period_is_sane check (starts_per_key_period between '10 milliseconds' and '366 days'),
  add constraint order_on_retry_is_known check (order_on_retry in ('block', 'pass'));

alter table bugle.commands
  add column max_running integer,
  add constraint max_running_is_positive check (max_running > 0);

-- What started lately, in queues that count it. One row for each claim, and for each key in it; the key of the queue itself is ''.
create table bugle.starts (
  queue text not null,
  key text not null,
  started_at timestamptz not null,
  starts integer not null,
  -- with all before it: how many lie between two moments is a subtraction
  total bigint not null,
  primary key (queue, key, started_at)
);

-- Where the last claim of a queue stopped, so that the next goes on behind it.
create table bugle.turns (
  queue text primary key,
  fair_key text not null default '',
  order_key text not null default '',
  limit_key text not null default '',
  look_at timestamptz
) with (fillfactor = 50);

create index turns_look_at on bugle.turns (look_at) where look_at is not null;

-- Jobs with a key are not in the claim's index: whoever looks for those without would walk over all that are held up. Nobody
-- without keys pays for the others.
drop index bugle.jobs_live_claimable;
create index jobs_live_claimable on bugle.jobs_live (queue, command, priority, id)
  where state = 'ready' and fair_key is null and order_key is null and limit_key is null;
create index jobs_live_keyed on bugle.jobs_live (queue, command, priority, id)
  where state = 'ready' and fair_key is null and (order_key is not null or limit_key is not null);
-- of each fair key first those that nothing else can hold up
create index jobs_live_fair on bugle.jobs_live (queue, command, fair_key, (order_key is not null or limit_key is not null), priority, id)
  where state = 'ready' and fair_key is not null;

create index jobs_live_limited on bugle.jobs_live (queue, command, limit_key, priority, id) where state = 'ready' and limit_key is not null;

-- What of each order key comes first: the one that runs, then those that could, then those that hold the others up. A job that
-- was never started and waits for its time or for other jobs holds nobody up.
create index jobs_live_ordered on bugle.jobs_live (
  queue, order_key, (case state when 'running' then 0 when 'ready' then 1 else 2 end), id)
  where order_key is not null and (state not in ('scheduled', 'waiting') or first_started_at is not null);

alter table bugle.changes add column command text;
alter table bugle.changes drop constraint a_change_is_about_something;
alter table bugle.changes add constraint a_change_is_about_something check (num_nonnulls(job, queue, worker, schedule, command) = 1);
