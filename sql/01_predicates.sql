-- Predicates about a live job, each written once. For readers they are functions; the planner replaces a call by the
-- expression itself, and so enters by the index that the expression leads to. Therefore they are plain SQL without
-- settings of their own. tests/sql/claim/predicates_lead_into_their_indexes.sql compares the plans.

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
