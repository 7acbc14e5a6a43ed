-- Claims that count: what started lately, how far the last claim came, and the locks that claims take.
--
-- Locks that decide progress or correctness are locks on rows and tables of this schema, which no other login can take.
-- Advisory locks can be taken by any login of the database; where they are used, they are hints.

-- What started lately, in queues that count it: one row for each claim, and for each key in it. The key of the queue
-- itself is ''. Found by a hash of both names, because numbers compare faster than text.
create table bugle.starts (
  queue text not null,
  key text not null,
  -- Not a generated column: PostgreSQL 18 rejects every DELETE in a published table whose key has one.
  key_hash bigint not null,
  started_at timestamptz not null,
  starts integer not null,
  -- with all before it: the number of starts between two moments is a subtraction
  total bigint not null,
  primary key (key_hash, started_at)
);

comment on table bugle.starts is
  'Recent starts in queues with max_starts or max_starts_per_key: a row for each claim, and for each '
  'limit_key in it.';
comment on column bugle.starts.queue is 'bugle.jobs.queue.';
comment on column bugle.starts.key is 'bugle.jobs.limit_key; empty for the queue as a whole.';
comment on column bugle.starts.key_hash is 'A hash of queue and key.';
comment on column bugle.starts.started_at is
  'When they started. Not before bugle.jobs.started_at of the jobs it counts.';
comment on column bugle.starts.starts is 'How many started.';
comment on column bugle.starts.total is 'How many started since the counting began, including these.';

create table bugle.claim_positions (
  queue text primary key,
  -- before the first of all hashes
  fair_hash bigint not null default -9223372036854775808,
  order_hash bigint not null default -9223372036854775808,
  limit_hash bigint not null default -9223372036854775808,
  recheck_at timestamptz
) with (fillfactor = 50);

comment on table bugle.claim_positions is
  'Where the last claim of a queue with limits or keys stopped, so that the next continues behind it.';
comment on column bugle.claim_positions.queue is 'bugle.jobs.queue.';
comment on column bugle.claim_positions.fair_hash is 'A hash of the fair_key that started last.';
comment on column bugle.claim_positions.order_hash is 'How far order keys were scanned, in the order of their hashes.';
comment on column bugle.claim_positions.limit_hash is 'How far limit keys were scanned, in the order of their hashes.';
comment on column bugle.claim_positions.recheck_at is
  'When a limit per period allows the next start: the queue is scanned again then.';

create index claim_positions_recheck_at on bugle.claim_positions (recheck_at) where recheck_at is not null;

-- Never updated: a claim locks the row until it commits.
create table bugle.claim_locks (
  kind text not null,
  name text not null,
  primary key (kind, name),
  constraint kind_is_queue_or_command check (kind in ('queue', 'command'))
);

comment on table bugle.claim_locks is
  'One row for each queue whose claims are serialized, and for each command with a limit: locked by the claim that '
  'counts.';
comment on column bugle.claim_locks.kind is 'queue or command.';
comment on column bugle.claim_locks.name is 'The name of the queue or command.';

-- Claims lock the table in ROW EXCLUSIVE mode while they decide whether to count; setting the first limit of a queue
-- locks it in SHARE mode, and so waits for claims that have not seen the limit.
create table bugle.limit_gate (nothing boolean primary key);

comment on table bugle.limit_gate is
  'Always empty. Locked by claims while they decide whether to count, and by setting the first limit of a queue.';
comment on column bugle.limit_gate.nothing is 'Unused: there are no rows.';
