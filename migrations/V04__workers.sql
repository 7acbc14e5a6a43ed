-- Workers: which queues they serve, which of them is the keeper, and what they did minute by minute.

-- People read the view bugle.workers.
create table bugle.registrations (
  id bigint generated always as identity primary key,
  nonce uuid not null default gen_random_uuid(),
  name text not null,
  host text,
  process_id integer,
  version text,
  protocol integer not null,
  queues text[] not null,
  slots integer[] not null,
  commands text[] not null,
  hosts jsonb not null default '[]',
  -- the session that holds the proof of life, a session advisory lock on life_key, fresh for each connection
  life_key bigint not null,
  backend_pid integer not null,
  started_at timestamptz not null default now(),
  seen_at timestamptz not null default now(),
  running integer not null default 0,
  completed bigint not null default 0,
  failed bigint not null default 0,
  paused_at timestamptz,
  drained_at timestamptz,
  lost_at timestamptz,
  stopped_at timestamptz,
  short_of text,
  lacks_slots boolean not null default false,
  overdue bigint[] not null default '{}',
  constraint every_queue_has_slots check (cardinality(queues) = cardinality(slots))
) with (fillfactor = 50);

comment on table bugle.registrations is 'Workers as they registered. People read the view bugle.workers.';
comment on column bugle.registrations.id is 'The worker''s number.';
comment on column bugle.registrations.nonce is
  'A secret between this row and its worker. An id can come again after a failover to a replica that lagged; a '
  'nonce does not.';
comment on column bugle.registrations.name is 'The name it registered with.';
comment on column bugle.registrations.host is 'The host it runs on.';
comment on column bugle.registrations.process_id is 'Its process on that host.';
comment on column bugle.registrations.version is 'The version of its library.';
comment on column bugle.registrations.protocol is 'The version of the worker protocol it speaks.';
comment on column bugle.registrations.queues is 'The queues it serves.';
comment on column bugle.registrations.slots is 'How many jobs it runs at once, for each of its queues.';
comment on column bugle.registrations.commands is 'The commands it has executors for.';
comment on column bugle.registrations.hosts is
  'Its hosts: name, how many processes it should have and how many are ready, what they announced, and the last error '
  'if one is missing.';
comment on column bugle.registrations.life_key is
  'The advisory lock its session holds: its proof of life. A new one for each connection.';
comment on column bugle.registrations.backend_pid is 'The session it claims from.';
comment on column bugle.registrations.started_at is 'When it registered.';
comment on column bugle.registrations.seen_at is 'When it last gave a sign of life.';
comment on column bugle.registrations.running is 'How many jobs it ran then.';
comment on column bugle.registrations.completed is 'How many attempts completed since it started, by its reports.';
comment on column bugle.registrations.failed is
  'How many attempts failed since it started, whether they are retried or not.';
comment on column bugle.registrations.paused_at is 'Since when this worker claims nothing; null if it is not paused.';
comment on column bugle.registrations.drained_at is 'When an operator told it to drain; null if none did.';
comment on column bugle.registrations.lost_at is 'Since when it is missing. Null: it is not.';
comment on column bugle.registrations.stopped_at is 'When it signed off.';
comment on column bugle.registrations.short_of is
  'What it is short of (open files, memory, connections …), so that it starts fewer jobs; null if nothing.';
comment on column bugle.registrations.lacks_slots is
  'Whether jobs of other databases, which the same process serves, take the slots it would use.';
comment on column bugle.registrations.overdue is
  'Jobs it runs whose time limit has passed and whose executors do not stop.';
comment on sequence bugle.registrations_id_seq is 'The numbers of workers.';

create index registrations_backend on bugle.registrations (backend_pid) where stopped_at is null;

-- Who is keeper and deputy, decided under the lock of its row, and the keeper's own clock: gaps in its ticks are
-- discounted when it judges the silence of others.
create table bugle.keeping (
  only_row boolean primary key default true,
  keeper bigint,
  deputy bigint,
  ticked_at timestamptz not null default now(),
  watching_since timestamptz not null default now(),
  upkeep_at timestamptz not null default '-infinity',
  stepped_at timestamptz,
  stepped_by interval,
  constraint there_is_one_row check (only_row)
) with (fillfactor = 50);

comment on table bugle.keeping is 'Which worker is keeper and which is deputy, and the keeper''s notes: one row.';
comment on column bugle.keeping.only_row is 'Always true: there is one row.';
comment on column bugle.keeping.keeper is 'The worker that runs maintenance.';
comment on column bugle.keeping.deputy is 'The worker that watches the keeper and takes over when it is gone.';
comment on column bugle.keeping.ticked_at is 'When the keeper last ran maintenance.';
comment on column bugle.keeping.watching_since is 'Since when it has done so without a gap.';
comment on column bugle.keeping.upkeep_at is 'When history was last maintained.';
comment on column bugle.keeping.stepped_at is 'When the database''s clock was last found to have been set back.';
comment on column bugle.keeping.stepped_by is 'By how much, to about a second.';

-- Which worker polls a queue while an enqueuing transaction stays open: one for each queue, until its lease ends.
create table bugle.watchers (
  queue text primary key,
  worker bigint not null,
  until timestamptz not null
) with (fillfactor = 50);

comment on table bugle.watchers is
  'Which worker polls a queue for all others while an enqueuing transaction keeps its bell taken.';
comment on column bugle.watchers.queue is 'The queue.';
comment on column bugle.watchers.worker is 'The worker that polls it.';
comment on column bugle.watchers.until is 'When another worker may take over, unless this one renews it before.';

-- Kept by the keeper, and only while settings.unserved_limit is set.
create table bugle.unserved_routes (
  queue text not null,
  route bigint not null,
  since timestamptz not null,
  primary key (queue, route)
) with (fillfactor = 70);

comment on table bugle.unserved_routes is
  'Since when ready jobs have been without a worker that serves them, by queue and route. Empty unless '
  'settings.unserved_limit is set.';
comment on column bugle.unserved_routes.queue is 'The queue.';
comment on column bugle.unserved_routes.route is 'A hash of the command, or of the remaining steps: bugle.route.';
comment on column bugle.unserved_routes.since is 'When the keeper first found that no live worker serves it.';

create table bugle.minutes (
  minute timestamptz not null,
  queue text not null,
  command text not null,
  -- 0 once the minute is over: then the rows of all workers are one
  worker bigint not null,
  completed bigint not null,
  failed bigint not null,
  others bigint not null,
  run_seconds double precision not null,
  wait_seconds double precision not null,
  run bigint[] not null,
  wait bigint[] not null,
  primary key (minute, queue, command, worker)
) with (fillfactor = 70);

comment on table bugle.minutes is 'What workers did, by minute, queue and command. People read bugle.minute_stats.';
comment on column bugle.minutes.minute is 'The beginning of the minute in which it was reported.';
comment on column bugle.minutes.queue is 'The queue.';
comment on column bugle.minutes.command is 'The command.';
comment on column bugle.minutes.worker is 'The worker that reported it; 0 for all of them, once the minute is over.';
comment on column bugle.minutes.completed is 'Attempts that completed.';
comment on column bugle.minutes.failed is 'Attempts that failed, whether they are retried or not.';
comment on column bugle.minutes.others is 'Attempts that ended otherwise: snoozed, cancelled, given back, waiting.';
comment on column bugle.minutes.run_seconds is 'The sum of their run times.';
comment on column bugle.minutes.wait_seconds is 'The sum of their waits, from when they were due.';
comment on column bugle.minutes.run is 'How many ran for how long, by the spans of bugle.bounds().';
comment on column bugle.minutes.wait is 'How many waited for how long, by the spans of bugle.bounds().';

create table bugle.doorbell_minutes (
  minute timestamptz not null,
  queue text not null,
  rings bigint not null,
  found_by_poll bigint not null,
  primary key (minute, queue)
) with (fillfactor = 70);

create index doorbell_minutes_found on bugle.doorbell_minutes (minute) where found_by_poll > 0;

comment on table bugle.doorbell_minutes is 'How often idle workers were woken, by minute and queue.';
comment on column bugle.doorbell_minutes.minute is 'The beginning of the minute in which it was reported.';
comment on column bugle.doorbell_minutes.queue is 'The queue.';
comment on column bugle.doorbell_minutes.rings is 'Notifications that a worker of the queue received.';
comment on column bugle.doorbell_minutes.found_by_poll is
  'Jobs for which no notification came: the safety poll of an idle worker that should have been notified found them.';

create table bugle.late_updates (
  id bigint generated always as identity primary key,
  refused_at timestamptz not null default now(),
  worker bigint not null,
  job bigint not null,
  claim bigint not null,
  verdict text not null,
  late_by interval
);

create index late_updates_refused on bugle.late_updates (refused_at);

comment on table bugle.late_updates is
  'Outcomes that were rejected, because the worker no longer held the job: it was frozen and the job was rescued, or '
  'an operator had ended it. Kept for settings.stats_days.';
comment on column bugle.late_updates.id is 'In the order in which they came.';
comment on column bugle.late_updates.refused_at is 'When it was rejected.';
comment on column bugle.late_updates.worker is 'bugle.workers.id.';
comment on column bugle.late_updates.job is 'bugle.jobs.id.';
comment on column bugle.late_updates.claim is 'The claim under which the worker had held the job.';
comment on column bugle.late_updates.verdict is 'fenced, or gone if there is no such job.';
comment on column bugle.late_updates.late_by is
  'How long after the worker had lost the job. Null if that is not known any more.';
comment on sequence bugle.late_updates_id_seq is 'The numbers of late updates.';
