-- What workers and the engine hand each other. Types are tables' kin: functions depend on them, so they are never replaced.

create type bugle.queue_request as (
  queue text,
  slots integer,
  after_priority integer,
  after_id bigint,
  mode text
);

create type bugle.claimed_job as (
  id bigint,
  claim bigint,
  command text,
  queue text,
  priority integer,
  attempt integer,
  max_attempts integer,
  timeout_seconds double precision,
  created_at timestamptz,
  run_at timestamptz,
  headers jsonb,
  payload jsonb
);

create type bugle.held_job as (
  id bigint,
  claim bigint
);

create type bugle.finished_job as (
  id bigint,
  claim bigint,
  result jsonb
);

create type bugle.failed_job as (
  id bigint,
  claim bigint,
  error text,
  code text,
  retryable boolean,
  retry_after_seconds double precision
);

create type bugle.verdict as (
  id bigint,
  claim bigint,
  verdict text
);

create type bugle.ending as (
  id bigint,
  state text,
  reason text,
  result jsonb,
  error text,
  code text
);
