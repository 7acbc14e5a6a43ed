-- What a job may have to do with other jobs: keys it shares with them, steps it is made of, jobs it waits for or is followed
-- by. All of it is null for a job that stands alone, and costs such a job nothing.

alter table bugle.jobs
  add column order_key text,
  add column limit_key text,
  add column fair_key text,
  add column steps text[],
  add column step integer,
  add column context jsonb,
  add column on_success text,
  add column on_failure text,
  add column parent bigint,
  add column outstanding integer,
  add column answer jsonb,
  -- something is to be done when it ends: the one thing every ending looks at
  add column watched boolean;

alter type bugle.claimed_job
  add attribute steps text[],
  add attribute step integer,
  add attribute context jsonb,
  add attribute answer jsonb;
