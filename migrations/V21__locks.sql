-- Locks that decide progress or correctness are locks on rows and tables of this schema, which no other login can take.
-- Advisory locks can be taken by any login of the database; where they remain, they are hints.

-- The keeper and its deputy hold their posts by what this row says, decided under its row lock.
alter table bugle.keeping add column deputy bigint;

-- One row for each queue that is claimed one claim at a time, and for each command with a limit. Never updated: a claim
-- locks the row until it commits.
create table bugle.claim_locks (
  kind text not null,
  name text not null,
  primary key (kind, name),
  constraint kind_is_queue_or_command check (kind in ('queue', 'command'))
);

-- Has no rows. Claims lock the table in ROW EXCLUSIVE mode while they decide whether to count; setting the first limit of a
-- queue locks it in SHARE mode, and so waits for claims that have not seen the limit.
create table bugle.limit_gate (nothing boolean primary key);

-- Which worker polls a queue while an enqueuing transaction stays open: one for each queue, until its lease ends.
create table bugle.watchers (
  queue text primary key,
  worker bigint not null,
  until timestamptz not null
) with (fillfactor = 50);
