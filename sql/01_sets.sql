-- sets: the sets of jobs that claims, scans, counts and explanations use. Each is defined once, here, as a view.
--
-- The planner inlines a view: plan, index and cost are those of the same conditions on the table, also in generic
-- plans and with "order by … limit n for update skip locked" (1.1 to 1.8 µs per row either way). A function in place
-- of a view costs six times as much. Each view repeats the predicate of its partial index, so that a query on it can
-- use that index; a column that is not asked for is not computed.
--
--   address     the row's ctid: valid while the row is locked, or within one statement
--   route       what a worker has to serve: the command of a job, or all remaining steps of a chain, as a hash
--   is_in_time  its deadline has not passed
--   …_hash      keys are compared as hashes: comparing text by the database's collation was most of the cost of a step
--               from key to key. Two keys with the same hash share a turn.

-- What a chain still has to do.
create or replace function bugle.remaining(p_steps text[], p_step integer) returns text[]
language sql immutable parallel safe
return p_steps[coalesce(p_step, 0) + 1:];
comment on function bugle.remaining is 'The steps of a chain that are not done yet.';

-- The indexes of jobs_live spell out this expression. The planner inlines the call, and so finds them.
create or replace function bugle.route(p_command text, p_steps text[], p_step integer) returns bigint
language sql immutable parallel safe
return coalesce(hash_array_extended(bugle.remaining(p_steps, p_step), 0), hashtextextended(p_command, 0));
comment on function bugle.route is
  'What a worker has to serve to run a job, as a hash: its command, or the remaining steps of a chain.';

-- Of each order key first the running job, then those that may block others (retrying, paused, waiting, postponed after
-- they had started), then the ready ones. A job that has never started and waits for its time or for other jobs blocks
-- nothing.
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
  'Jobs with an order key in their order: the running one, those that may block others, the ready ones.';

-- is_next_in_order: only the first ready job of an order key may start, and only if none is running; and, unless the
-- queue sets order_on_retry = 'pass', only if no job before it blocks the key. The first job of the line is usually
-- enough to decide.
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
  'Ready jobs without any key: only their own deadline and limits of their queue or command can hold them back.';

create or replace view bugle.keyed_ready as
select r.* from bugle.ready r where r.fair_key is null and (r.order_key is not null or r.limit_key is not null);
comment on view bugle.keyed_ready is 'Ready jobs with an order key or a limit key, and without a fair key.';

create or replace view bugle.fair_ready as
select r.* from bugle.ready r where r.fair_key is not null;
comment on view bugle.fair_ready is 'Ready jobs with a fair key.';

create or replace view bugle.limited_ready as
select r.* from bugle.ready r where r.limit_key is not null;
comment on view bugle.limited_ready is 'Ready jobs with a limit key.';

-- The three kinds are in three indexes. The planner inlines this, so that a caller can limit it and reads no rows.
create or replace function bugle.ready_of(p_queue text, p_route bigint) returns setof boolean
language sql stable
as $$
  select true from bugle.plain_ready j where j.queue = p_queue and j.route = p_route
  union all
  select true from bugle.keyed_ready j where j.queue = p_queue and j.route = p_route
  union all
  select true
  from bugle.fair_ready j
  where j.queue_hash = hashtextextended(p_queue, 0)
    and j.route = p_route
    and j.queue = p_queue
$$;
comment on function bugle.ready_of is
  'A row for each ready job of a queue and route: without keys, with keys, with a fair key.';

-- Only the index of those with a fair key has to visit rows.
create or replace function bugle.ready_in(p_queue text) returns setof boolean
language sql stable
as $$
  select true from bugle.plain_ready j where j.queue = p_queue
  union all
  select true from bugle.keyed_ready j where j.queue = p_queue
  union all
  select true
  from bugle.fair_ready j
  where j.queue_hash = hashtextextended(p_queue, 0)
    and j.queue = p_queue
$$;
comment on function bugle.ready_in is 'A row for each ready job of a queue.';

-- Predicates about a live job, for sets that other conditions narrow further. The planner inlines them and so finds the
-- index; therefore they are plain SQL without settings of their own.
-- tests/sql/claim/predicates_lead_into_their_indexes.sql compares the plans.

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

-- For queries about all running jobs of a worker, a queue or the fleet. The tempting form is "state = 'running'" here
-- and in the index jobs_live_running. But then every query about one running job might use that index, and statistics
-- taken while nothing ran say that it is empty: a completion planned like this compared every running job with every
-- finished one, 1,000 jobs/s instead of 20,000. "Like" without a wildcard is equivalent, and only queries that use it
-- find the index.
create or replace function bugle.is_running(p_job bugle.jobs_live) returns boolean
language sql immutable parallel safe
return p_job.state like 'running';
comment on function bugle.is_running is 'Whether a job is running; uses the index of running jobs.';

-- Null: of all queues, keys or commands.
create or replace function bugle.running_of(p_queue text, p_limit_key text, p_command text) returns setof bigint
language sql stable
as $$
  select j.id
  from bugle.jobs_live j
  where bugle.is_running(j)
    and (p_queue is null or j.queue = p_queue)
    and (p_limit_key is null or j.limit_key = p_limit_key)
    and (p_command is null or j.command = p_command)
$$;
comment on function bugle.running_of is 'The running jobs that count for a limit.';

-- A deadline is the last moment at which a job may be started: running jobs continue.
create or replace function bugle.is_expired(p_job bugle.jobs_live) returns boolean
language sql stable parallel safe
return p_job.deadline is not null
  -- seed: deadline_ends_running_jobs
  and p_job.state <> 'running'
  and p_job.deadline <= now();
comment on function bugle.is_expired is 'Whether the deadline of a job has passed before it was started.';

create or replace function bugle.is_final(p_state text) returns boolean
language sql immutable parallel safe
return p_state in ('completed', 'failed', 'cancelled');
comment on function bugle.is_final is 'Whether a job in this state has ended.';
