-- sets: the sets of jobs that claims, scans, counts and explanations speak of. Each is defined here, once, as a view.
--
-- The planner inlines a view: plan, index and cost are those of the same conditions on the table, also in generic
-- plans and with "order by … limit n for update skip locked" (1.1 to 1.8 µs per row either way). A function in place
-- of a view costs six times as much. Each view repeats the predicate of its partial index, so that a query on it can
-- use that index; a column that is not asked for is not computed.
--
--   address     where the row is: valid for as long as the row is locked, or within one statement
--   route       what a worker has to serve: the command of a job, or all remaining steps of a chain, as a hash
--   is_in_time  its deadline has not passed
--   …_hash      keys are compared as hashes: to compare text, in the order of the database's language, was most of the
--               cost of a step from key to key. Two keys with the same hash share a turn.

-- As in the indexes of jobs_live, where it is spelled out: the planner inlines it, and so finds them.
create or replace function bugle.route(p_command text, p_steps text[], p_step integer) returns bigint
language sql immutable parallel safe
return coalesce(hash_array_extended(p_steps[coalesce(p_step, 0) + 1:], 0), hashtextextended(p_command, 0));
comment on function bugle.route is
  'What a worker has to serve to run a job, as a hash: its command, or the remaining steps of a chain.';

-- Jobs of order keys, for each key what runs first, then what may block the others (retrying, paused, waiting, put
-- off after it had started), then what is ready. A job that never started and waits for its time or for other jobs
-- blocks nothing.
create or replace view bugle.order_line as
select j.ctid as address,
  hashtextextended(j.queue, 0) as queue_hash,
  hashtextextended(j.order_key, 0) as order_hash,
  case j.state when 'running' then 0 when 'ready' then 2 else 1 end as rank,
  bugle.route(j.command, j.steps, j.step) as route,
  j.deadline is null or j.deadline > now() as is_in_time,
  j.*
from bugle.jobs_live j
where j.order_key is not null
  and (j.state not in ('scheduled', 'waiting') or j.first_started_at is not null);
comment on view bugle.order_line is
  'Jobs with an order key in their order: the one that runs, those that may block others, those that are ready.';

-- is_next_in_order: of an order key only the first ready job may start, and only if none runs; and, unless the queue
-- lets jobs pass one that is retrying, only if none before it blocks the key. The first of the line tells in one
-- probe, mostly.
create or replace view bugle.ready as
select j.ctid as address,
  bugle.route(j.command, j.steps, j.step) as route,
  hashtextextended(j.queue, 0) as queue_hash,
  hashtextextended(j.fair_key, 0) as fair_hash,
  hashtextextended(j.limit_key, 0) as limit_hash,
  (j.order_key is not null or j.limit_key is not null) as has_other_key,
  j.deadline is null or j.deadline > now() as is_in_time,
  j.order_key is null or (
    select case f.rank
        when 0 then false
        when 2 then f.id = j.id
        -- seed: retry_lets_others_pass
        else (f.id > j.id or exists (select from bugle.queues q where q.name = j.queue and q.order_on_retry = 'pass'))
          and j.id = (
            select r.id
            from bugle.order_line r
            where r.queue_hash = hashtextextended(j.queue, 0)
              and r.order_hash = hashtextextended(j.order_key, 0)
              and r.rank = 2
              and r.queue = j.queue
              and r.order_key = j.order_key
            order by r.id
            limit 1)
      end
    from bugle.order_line f
    where f.queue_hash = hashtextextended(j.queue, 0)
      and f.order_hash = hashtextextended(j.order_key, 0)
      and f.queue = j.queue
      and f.order_key = j.order_key
    order by f.rank, f.id
    limit 1) as is_next_in_order,
  j.*
from bugle.jobs_live j
where j.state = 'ready';
comment on view bugle.ready is 'Ready jobs of every kind.';

create or replace view bugle.plain_ready as
select r.* from bugle.ready r where r.fair_key is null and r.order_key is null and r.limit_key is null;
comment on view bugle.plain_ready is
  'Ready jobs without any key: only their own deadline, and limits of their queue or command, can keep them.';

create or replace view bugle.keyed_ready as
select r.* from bugle.ready r where r.fair_key is null and (r.order_key is not null or r.limit_key is not null);
comment on view bugle.keyed_ready is 'Ready jobs with an order key or a limit key, and without a fair key.';

create or replace view bugle.fair_ready as
select r.* from bugle.ready r where r.fair_key is not null;
comment on view bugle.fair_ready is 'Ready jobs with a fair key.';

create or replace view bugle.limited_ready as
select r.* from bugle.ready r where r.limit_key is not null;
comment on view bugle.limited_ready is 'Ready jobs with a limit key.';

-- Predicates about a live job, for sets that other conditions narrow further. The planner replaces a call by the
-- expression, and so uses the index that the expression leads to; therefore they are plain SQL without settings of
-- their own. tests/sql/claim/predicates_lead_into_their_indexes.sql compares the plans.

-- The fence: every call of a worker about a job.
create or replace function bugle.is_held_by(p_job bugle.jobs_live, p_worker bigint, p_id bigint, p_claim bigint)
returns boolean
language sql immutable parallel safe
return p_job.id = p_id
  and p_job.claim = p_claim
  and p_job.worker = p_worker
  and p_job.state = 'running';
comment on function bugle.is_held_by is
  'Whether a job is the one with this id, and a worker holds it under this claim.';

-- For queries that mean all running jobs of a worker, a queue or the fleet. The tempting form is "state = 'running'"
-- here and in the index jobs_live_running. But then every query about a job that happens to run may enter by that
-- index, and statistics taken while nothing ran promise that it is empty: a completion that believed them compared
-- every running job with every finished one, 1,000 jobs/s instead of 20,000. "Like" without a wildcard means the same,
-- and only queries that spell it so find the index.
create or replace function bugle.is_running(p_job bugle.jobs_live) returns boolean
language sql immutable parallel safe
return p_job.state like 'running';
comment on function bugle.is_running is 'Whether a job runs; leads into the index of running jobs.';

-- A deadline is the last moment at which a job may be started: what runs goes on.
create or replace function bugle.is_expired(p_job bugle.jobs_live) returns boolean
language sql stable parallel safe
return p_job.deadline is not null
  -- seed: deadline_ends_running_jobs
  and p_job.state <> 'running'
  and p_job.deadline <= now();
comment on function bugle.is_expired is 'Whether the deadline of a job has passed before it was started.';
