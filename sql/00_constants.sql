-- Constants that this schema and its workers share, each defined once: protocol version, lock keys, channels.
--
-- Conventions of all files: functions that roles may call are security definer and pin their search_path. Helpers that
-- only such functions call do neither: they inherit both, and setting them again would cost more than most helpers do.
-- Code that runs often is plpgsql, which caches its plans; plain SQL functions are planned anew at each call before
-- PostgreSQL 18.
--
-- Advisory locks are hints: any login of the database can take one and hold it indefinitely. A foreign session that
-- holds one can slow Bugle down (more notifications, more polling), but never stop it. Progress and correctness depend
-- only on locks on rows and tables of this schema: bugle.keeping (who is keeper), bugle.claim_locks
-- (counting), bugle.limit_gate (the first limit), bugle.chains (pruning).
--
-- All keys are defined here. They are 64 bits wide. Each kind has its own number, which seeds the hash of a queue's
-- name: an INSERT needs no lookup, and two names would have to collide in all 64 bits before one could take the other's
-- wake-ups. The planner inlines these functions, also where an INSERT or a completion calls them.

-- Raised when an older worker could misunderstand a function of this schema. An older worker runs on while it is
-- unchanged.
create or replace function bugle.protocol() returns integer
language sql immutable parallel safe
return 1;
comment on function bugle.protocol is 'The version of the worker protocol that this schema speaks.';

-- docs/retries.md says what each of them means.
create or replace function bugle.failure_reasons() returns text[]
language sql immutable parallel safe
return array[
  'attempts_exhausted', 'timeout', 'step_failed', 'not_retryable', 'deadline', 'no_executor', 'crash_loop',
  'answer_overdue', 'rejected', 'dependency_failed', 'operator'];
comment on function bugle.failure_reasons is 'Why a job can have failed: bugle.jobs.reason.';

-- Before the first of all keys that are compared as hashes.
create or replace function bugle.lowest_hash() returns bigint
language sql immutable parallel safe
return -9223372036854775808;
comment on function bugle.lowest_hash is 'The lowest hash: before all keys.';

-- Held exclusively by the idle worker that is notified for this queue, shared by transactions that enqueue into it
-- without a notification.
create or replace function bugle.bell_key(p_queue text) returns bigint
language sql immutable parallel safe
return hashtextextended(p_queue, 7126490981);
comment on function bugle.bell_key is 'The advisory lock that is the doorbell of a queue.';

-- Held, shared, by every idle worker of a queue that leaves the bell to another.
create or replace function bugle.follower_key(p_queue text) returns bigint
language sql immutable parallel safe
return hashtextextended(p_queue, 7126490982);
comment on function bugle.follower_key is 'The advisory lock that shows that a worker follows the sentinel of a queue.';

-- Held, shared, by sessions that subscribed to the events of a queue. Null stands for all queues: no queue has an
-- empty name.
create or replace function bugle.subscription_key(p_queue text) returns bigint
language sql immutable parallel safe
return hashtextextended(coalesce(p_queue, ''), 7126490983);
comment on function bugle.subscription_key is
  'The advisory lock that shows that a session listens to the events of a queue; null: of all queues.';

-- A new one for each connection of a worker: a half-open connection keeps the lock of a backend whose worker has long
-- reconnected.
create or replace function bugle.new_life_key() returns bigint
language sql volatile
return hashtextextended(gen_random_uuid()::text, 7126490984);
comment on function bugle.new_life_key is 'A key for the advisory lock that proves that a worker''s session is alive.';

create or replace function bugle.subscribers_key() returns bigint
language sql immutable parallel safe
return 7126490985;
comment on function bugle.subscribers_key is
  'The advisory lock that shows that a session listens to the events of any queue.';

create or replace function bugle.silence_key() returns bigint
language sql immutable parallel safe
return 7126490986;
comment on function bugle.silence_key is
  'The advisory lock of transactions that have ended jobs without a notification.';

-- The holder matters as much as the lock, because a foreign session may have taken it. Reading pg_locks locks the whole
-- lock table for a moment, so nothing that runs once per job does it.
create or replace function bugle.advisory_locks() returns table (pid integer, key bigint, is_exclusive boolean)
language sql
as $$
  select l.pid, l.classid::bigint << 32 | l.objid::bigint, l.mode = 'ExclusiveLock'
  from pg_catalog.pg_locks l
  where l.locktype = 'advisory'
    and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
    and l.objsubid = 1
    and l.granted
$$;
comment on function bugle.advisory_locks is 'The advisory locks held in this database, and by which sessions.';

create or replace function bugle.holds(p_key bigint, p_pid integer default pg_backend_pid()) returns boolean
language sql
as $$
  select exists (select from bugle.advisory_locks() l where l.pid = p_pid and l.key = p_key)
$$;
comment on function bugle.holds is 'Whether a session, by default this one, holds an advisory lock.';

-- Hashed, because a queue's name may be longer than a channel's.
create or replace function bugle.bell_channel(p_queue text) returns text
language sql immutable parallel safe
return 'bugle_bell_' || to_hex(bugle.bell_key(p_queue));
comment on function bugle.bell_channel is 'The channel on which the bell of a queue rings.';

create or replace function bugle.worker_channel(p_worker bigint) returns text
language sql immutable parallel safe
return 'bugle_worker_' || p_worker;
comment on function bugle.worker_channel is
  'The channel of one worker: scan <queue>, cancel <job> <claim>, pause, resume, drain.';

-- Replacing a trigger locks its table against writers, so it is done only when its definition changed.
create or replace function bugle.keep_trigger(p_table regclass, p_name text, p_definition text) returns void
language plpgsql
as $$
declare
  v_mark constant text := 'Definition ' || md5(p_definition);
begin
  if exists (
    select
    from pg_trigger t
    where t.tgrelid = p_table
      and t.tgname = p_name
      and obj_description(t.oid, 'pg_trigger') = v_mark)
  then
    return;
  end if;
  execute format('create or replace trigger %I %s', p_name, p_definition);
  execute format('comment on trigger %I on %s is %L', p_name, p_table, v_mark);
end
$$;
comment on function bugle.keep_trigger is
  'Create or replace a trigger, unless it exists with the same definition. For migrations.';

-- If a role was created after the migration, the checksum differs, so that the next migration grants its rights.
create or replace function bugle.schema_state() returns table (revision integer, checksum text, protocol integer)
language sql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
  select v.revision,
    case when exists (
      select
      from pg_roles r
      where r.rolname in ('bugle_enqueuer', 'bugle_worker', 'bugle_observer', 'bugle_viewer', 'bugle_operator')
        and not has_schema_privilege(r.oid, 'bugle', 'usage'))
      then v.checksum || ' without grants' else v.checksum end,
    bugle.protocol()
  from bugle.schema_version v
$$;
comment on function bugle.schema_state is 'What this database was migrated to, and which worker protocol it speaks.';
