-- Types: what workers, operators and the engine's own functions pass to each other. Functions depend on them, so they
-- are here and not replaced with the functions.

create type bugle.queue_position as (
  priority integer,
  run_at timestamptz,
  id bigint
);

comment on type bugle.queue_position is 'Where a ready job is in its queue: in the order of all three.';
comment on column bugle.queue_position.priority is 'Its priority.';
comment on column bugle.queue_position.run_at is 'When it was due.';
comment on column bugle.queue_position.id is 'bugle.jobs.id.';

create type bugle.queue_request as (
  queue text,
  slots integer,
  after bugle.queue_position,
  mode text
);

comment on type bugle.queue_request is
  'What a worker asks of a queue: how many jobs, and behind which one to start the scan.';
comment on column bugle.queue_request.queue is 'The queue.';
comment on column bugle.queue_request.slots is 'How many jobs at most.';
comment on column bugle.queue_request.after is 'Start behind this position. Null: from the start.';
comment on column bugle.queue_request.mode is
  'What the worker holds on the queue and gives up by claiming: sentinel or follower; awake if nothing; handing_on if '
  'it is awake and wants followers with other commands to be called too.';

create type bugle.start_search as (
  queue text,
  routes bigint[],
  commands text[],
  limits bugle.queues,
  running jsonb,
  command_rooms jsonb
);

comment on type bugle.start_search is
  'What a claim of a queue with limits or keys looks for: jobs that its worker serves and that limits allow to start.';
comment on column bugle.start_search.queue is 'The queue.';
comment on column bugle.start_search.routes is 'Those of bugle.served_routes that have ready jobs there.';
comment on column bugle.start_search.commands is 'The commands for which the worker has executors.';
comment on column bugle.start_search.limits is 'The limits of the queue.';
comment on column bugle.start_search.running is 'How many jobs of each limit key are running, where that is limited.';
comment on column bugle.start_search.command_rooms is 'How many jobs may start of each command that has a limit.';

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
  payload jsonb,
  steps text[],
  step integer,
  context jsonb,
  answer jsonb,
  address tid,
  turn integer,
  default_timeout_seconds double precision
);

comment on type bugle.claimed_job is 'A job as its worker receives it.';
comment on column bugle.claimed_job.id is 'bugle.jobs.id.';
comment on column bugle.claimed_job.claim is 'The number that goes with every call about it.';
comment on column bugle.claimed_job.command is 'What to do.';
comment on column bugle.claimed_job.queue is 'The queue it waited in.';
comment on column bugle.claimed_job.priority is 'Smaller values run first.';
comment on column bugle.claimed_job.attempt is '1 for the first attempt.';
comment on column bugle.claimed_job.max_attempts is
  'How often it is attempted: its own number, its command''s or its policy''s. 2147483647: without limit. Null: a '
  'chain that is not retried as a whole.';
comment on column bugle.claimed_job.timeout_seconds is
  'How long this attempt may take: the job''s own limit, or its command''s.';
comment on column bugle.claimed_job.default_timeout_seconds is
  'How long it may take if timeout_seconds is null and its executor has no limit either.';
comment on column bugle.claimed_job.created_at is 'When it was enqueued.';
comment on column bugle.claimed_job.run_at is 'When it was due.';
comment on column bugle.claimed_job.headers is 'Names and values that are passed along with it.';
comment on column bugle.claimed_job.payload is 'Its data. Null: too large, to be fetched with bugle.payloads.';
comment on column bugle.claimed_job.steps is 'The steps of a chain; its command is then only a name.';
comment on column bugle.claimed_job.step is 'How many of them are done. Null: none.';
comment on column bugle.claimed_job.context is
  'Their merged output. Null also if it is too large: bugle.start_step returns it.';
comment on column bugle.claimed_job.answer is 'The answer its executor waited for, if it was resumed with one.';
comment on column bugle.claimed_job.address is
  'Where its row is stored, for bugle.complete_at. Null: to be completed by bugle.complete.';
comment on column bugle.claimed_job.turn is
  'Where limits or keys decide what may start: its place in their order, 0 if they have none.';

create type bugle.held_job as (
  id bigint,
  claim bigint
);

comment on type bugle.held_job is 'A job and the claim under which a worker holds it.';
comment on column bugle.held_job.id is 'bugle.jobs.id.';
comment on column bugle.held_job.claim is 'The claim.';

create type bugle.finished_job as (
  id bigint,
  claim bigint,
  result jsonb
);

comment on type bugle.finished_job is 'A job whose executor has succeeded.';
comment on column bugle.finished_job.id is 'bugle.jobs.id.';
comment on column bugle.finished_job.claim is 'The claim it was held under.';
comment on column bugle.finished_job.result is 'Its result, if it has one.';

create type bugle.failed_job as (
  id bigint,
  claim bigint,
  error text,
  code text,
  retryable boolean,
  retry_after_seconds double precision
);

comment on type bugle.failed_job is 'A failed attempt.';
comment on column bugle.failed_job.id is 'bugle.jobs.id.';
comment on column bugle.failed_job.claim is 'The claim it was held under.';
comment on column bugle.failed_job.error is 'What went wrong, with its causes.';
comment on column bugle.failed_job.code is 'A short code, if there is one; timeout has a meaning.';
comment on column bugle.failed_job.retryable is 'False: another attempt would fail as well. Null: true.';
comment on column bugle.failed_job.retry_after_seconds is
  'When to retry, if the executor asks for a certain delay.';

create type bugle.verdict as (
  id bigint,
  claim bigint,
  verdict text
);

comment on type bugle.verdict is 'Why a call about a job was not accepted. Calls that succeeded are not reported.';
comment on column bugle.verdict.id is 'bugle.jobs.id.';
comment on column bugle.verdict.claim is 'The claim of the call.';
comment on column bugle.verdict.verdict is
  'repeated (the same call was made before), fenced (it is not held under this claim) or gone (there is no such job).';

create type bugle.minute_report as (
  queue text,
  command text,
  completed bigint,
  failed bigint,
  others bigint,
  run_seconds double precision,
  wait_seconds double precision,
  run bigint[],
  wait bigint[]
);

comment on type bugle.minute_report is 'What a worker reports of one queue and command.';
comment on column bugle.minute_report.queue is 'The queue.';
comment on column bugle.minute_report.command is 'The command.';
comment on column bugle.minute_report.completed is 'Attempts that completed since the last report.';
comment on column bugle.minute_report.failed is 'Attempts that failed.';
comment on column bugle.minute_report.others is 'Attempts that ended otherwise.';
comment on column bugle.minute_report.run_seconds is 'The sum of their run times.';
comment on column bugle.minute_report.wait_seconds is 'The sum of their waits.';
comment on column bugle.minute_report.run is 'How many ran for how long, by the spans of bugle.bounds(), and one more.';
comment on column bugle.minute_report.wait is 'How many waited for how long, likewise.';

create type bugle.bell_report as (
  queue text,
  rings bigint,
  found_by_poll bigint
);

comment on type bugle.bell_report is 'What a worker reports of the doorbell of one queue.';
comment on column bugle.bell_report.queue is 'The queue.';
comment on column bugle.bell_report.rings is 'Notifications since the last report.';
comment on column bugle.bell_report.found_by_poll is 'Jobs that only the safety poll found.';

create type bugle.operated as (
  id bigint,
  done boolean,
  state text,
  reason text
);

comment on type bugle.operated is 'What became of an operator''s verb for one job: done, its state now, or why not.';
comment on column bugle.operated.id is 'The job.';
comment on column bugle.operated.done is 'Whether the verb was applied.';
comment on column bugle.operated.state is 'The job''s state now; null if there is no such job.';
comment on column bugle.operated.reason is 'Why it was refused; null if it was done.';

create type bugle.operation as (
  id bigint,
  state text,
  queue text,
  command text,
  unique_key text,
  to_state text,
  reason text
);

comment on type bugle.operation is 'What an operator''s verb does to a job; inside the engine.';
comment on column bugle.operation.id is 'The job.';
comment on column bugle.operation.state is 'Its state before; null if there is no such job.';
comment on column bugle.operation.queue is 'Its queue.';
comment on column bugle.operation.command is 'Of a finished job, its command.';
comment on column bugle.operation.unique_key is 'Of a finished job, its unique_key.';
comment on column bugle.operation.to_state is 'Its state afterwards.';
comment on column bugle.operation.reason is 'Why that is not possible; null if it is.';

create type bugle.ending as (
  id bigint,
  state text,
  reason text,
  result jsonb,
  error text,
  code text,
  address tid
);

comment on type bugle.ending is 'How a job is to end; inside the engine.';
comment on column bugle.ending.id is 'bugle.jobs.id.';
comment on column bugle.ending.state is 'Its final state.';
comment on column bugle.ending.reason is 'Why.';
comment on column bugle.ending.result is 'Its result.';
comment on column bugle.ending.error is 'Its last error. Null: as it was.';
comment on column bugle.ending.code is 'The same as a short code.';
comment on column bugle.ending.address is 'Where the row of the job is. Null until the job is locked.';

-- Passed as a value, because the row of the job may be gone already.
create type bugle.ended_job as (
  id bigint,
  state text,
  reason text,
  command text,
  queue text,
  headers jsonb,
  awaited boolean,
  on_success text,
  on_failure text,
  result jsonb,
  error text
);

comment on type bugle.ended_job is 'A job that has just ended, for its dependants, follow-ups and subscribers.';
comment on column bugle.ended_job.id is 'bugle.jobs.id.';
comment on column bugle.ended_job.state is 'completed, failed or cancelled.';
comment on column bugle.ended_job.reason is 'Why, if it did not complete.';
comment on column bugle.ended_job.command is 'Its command.';
comment on column bugle.ended_job.queue is 'Its queue.';
comment on column bugle.ended_job.headers is 'Its headers, which a follow-up gets too.';
comment on column bugle.ended_job.awaited is
  'Whether dependants or follow-ups depend on it; otherwise only subscribers are notified.';
comment on column bugle.ended_job.on_success is 'The command that follows its completion.';
comment on column bugle.ended_job.on_failure is 'The command that follows its failure.';
comment on column bugle.ended_job.result is 'What it returned.';
comment on column bugle.ended_job.error is 'What went wrong.';

create type bugle.cron as (
  seconds integer[],
  minutes integer[],
  hours integer[],
  days integer[],
  months integer[],
  weekdays integer[],
  either_day boolean,
  every_hour boolean
);

comment on type bugle.cron is 'A cron expression as the engine reads it.';
comment on column bugle.cron.seconds is 'The seconds it allows, in order.';
comment on column bugle.cron.minutes is 'The minutes.';
comment on column bugle.cron.hours is 'The hours.';
comment on column bugle.cron.days is 'The days of the month.';
comment on column bugle.cron.months is 'The months.';
comment on column bugle.cron.weekdays is 'The days of the week: 0 is Sunday.';
comment on column bugle.cron.either_day is 'Both day fields are restricted: a day that matches one of them is enough.';
comment on column bugle.cron.every_hour is 'All 24 hours are listed: real hours count, not those of the clock.';

create type bugle.workflow_edge as (
  job integer,
  name text,
  spelled jsonb,
  is_valid boolean,
  needs integer,
  needs_name text,
  needs_id bigint,
  policy text
);

comment on type bugle.workflow_edge is 'That a job of a workflow comes after another, as the workflow spells it.';
comment on column bugle.workflow_edge.job is 'The number of the job that waits.';
comment on column bugle.workflow_edge.name is 'Its name.';
comment on column bugle.workflow_edge.spelled is 'The element of its "after".';
comment on column bugle.workflow_edge.is_valid is 'Whether that element can be read.';
comment on column bugle.workflow_edge.needs is 'The number of the job that it needs, if that is of the workflow.';
comment on column bugle.workflow_edge.needs_name is 'The name of that job.';
comment on column bugle.workflow_edge.needs_id is 'The id of the job that it needs, if that is not of the workflow.';
comment on column bugle.workflow_edge.policy is 'What to do if the needed job fails: fail, or run.';
