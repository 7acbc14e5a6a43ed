-- The numbers both sides must agree on, each in one place.
--
-- A habit of all files: functions that roles may call are security definer and pin their search_path; helpers that only such
-- functions call are neither, they inherit both, and setting them again for each call would cost more than most helpers do.
-- What runs often is plpgsql, which keeps its plans; functions in plain SQL are planned anew each time before PostgreSQL 18.
--
-- Advisory lock keys are 64 bits wide. Where one belongs to a queue it is a 64-bit hash of the queue's name, seeded apart
-- for each use: no lookup is needed while a job is being inserted, and two queues would have to be found that collide in
-- all 64 bits before one could take the other's wake-ups.

-- Raised when an older worker could misunderstand a function of this schema. An older worker runs on while it is unchanged.
create or replace function bugle.protocol() returns integer
language sql immutable parallel safe
return 1;
comment on function bugle.protocol is 'The version of the worker protocol that this schema speaks.';

-- Held exclusively by the worker that sleeps for this queue, shared by transactions that enqueue into it silently.
create or replace function bugle.bell_key(p_queue text) returns bigint
language sql immutable parallel safe
return hashtextextended(p_queue, 7126490981);
comment on function bugle.bell_key is 'The advisory lock that is the doorbell of a queue.';

-- Held, shared, by every idle worker of a queue that leaves the bell to another.
create or replace function bugle.follower_key(p_queue text) returns bigint
language sql immutable parallel safe
return hashtextextended(p_queue, 7126490982);
comment on function bugle.follower_key is 'The advisory lock that shows that somebody follows the sentinel of a queue.';

create or replace function bugle.keeper_key() returns bigint
language sql immutable parallel safe
return 7126490983;
comment on function bugle.keeper_key is 'The advisory lock of the one worker that keeps the house.';

create or replace function bugle.deputy_key() returns bigint
language sql immutable parallel safe
return 7126490984;
comment on function bugle.deputy_key is 'The advisory lock of the one worker that watches the keeper.';

-- Hashed, because a queue's name may be longer than a channel's.
create or replace function bugle.bell_channel(p_queue text) returns text
language sql immutable parallel safe
return 'bugle_bell_' || to_hex(bugle.bell_key(p_queue));
comment on function bugle.bell_channel is 'The channel on which the bell of a queue is heard.';

create or replace function bugle.worker_channel(p_worker bigint) returns text
language sql immutable parallel safe
return 'bugle_worker_' || p_worker;
comment on function bugle.worker_channel is 'The channel on which one worker is spoken to: look <queue>, cancel <job> <claim>.';

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
comment on function bugle.keep_trigger is 'Create or replace a trigger, unless it is there with the same definition. For migrations.';
revoke execute on function bugle.keep_trigger from public;

-- Where a role came into being after the migration, the checksum is another: the next one grants it what it needs.
create or replace function bugle.schema_state() returns table (revision integer, checksum text, protocol integer)
language sql stable
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
  select v.revision,
    case when exists (
      select
      from pg_roles r
      where r.rolname in ('bugle_enqueuer', 'bugle_worker', 'bugle_viewer', 'bugle_operator')
        and not has_schema_privilege(r.oid, 'bugle', 'usage'))
      then v.checksum || ' without grants' else v.checksum end,
    bugle.protocol()
  from bugle.schema_version v
$$;
comment on function bugle.schema_state is 'What this database was migrated to, and which worker protocol it speaks.';
revoke execute on function bugle.schema_state from public;
