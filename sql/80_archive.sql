-- archive: partitions of history exist 2 days ahead, and are dropped by retention. Called by the keeper.
--
-- Neither may block other sessions, even while a report has bugle.jobs open for minutes:
--   A day's leaf is created as a table of its own and then attached, which locks lightly. CREATE TABLE … PARTITION OF,
--   or a default partition, would wait for the report, and every completion would wait behind it.
--   A day is retired by TRUNCATE of its leaf, which locks that leaf alone; the empty table is dropped when unused.
--   Each call does at most one thing that locks, so that no lock is held for long, and gives up soon.
-- Leaves that were detached or dropped by hand are found by comparing bugle.history_days with the catalog, and so are
-- the parts of bugle.jobs that contain them.

create or replace function bugle.missing_parts() returns table (part text, states text[], is_there boolean)
language sql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
  select p.part, p.states::text[], c.oid is not null
  from (
    values ('jobs_live', '{scheduled,ready,running,retrying,paused,waiting}'), ('jobs_ended', '{completed,cancelled}'),
      ('jobs_failed', '{failed}')) p (part, states)
    left join pg_class c on c.relnamespace = 'bugle'::regnamespace and c.relname = p.part
  where not exists (
    select
    from pg_inherits i
    where i.inhrelid = c.oid
      and i.inhparent = 'bugle.jobs'::regclass
      and not i.inhdetachpending)
$$;
comment on function bugle.missing_parts is
  'Parts of bugle.jobs that an operator has detached (is_there) or dropped, and the states of their jobs.';

-- Postgres reads all rows of the part, to see that they belong there.
create or replace function bugle.attach_part(p_part text, p_states text[]) returns text
language plpgsql set lock_timeout = '100ms'
as $$
begin
  if exists (
    select from pg_inherits i where i.inhrelid = to_regclass(format('bugle.%I', p_part)) and i.inhdetachpending)
  then
    execute format('alter table bugle.jobs detach partition bugle.%I finalize', p_part);
  end if;
  execute format('alter table bugle.jobs attach partition bugle.%I for values in (%s)', p_part,
    (select string_agg(quote_literal(s.state), ', ') from unnest(p_states) s (state)));
  return format('attached %s', p_part);
exception when lock_not_available or deadlock_detected then
  return null;
end
$$;
comment on function bugle.attach_part is 'Attach a part of bugle.jobs that was detached by hand. '
  'Returns what was done; null if it could not be locked at once.';

create or replace function bugle.add_day(p_kind text, p_day date) returns boolean
language plpgsql set lock_timeout = '100ms' set datestyle = 'iso'
as $$
declare
  v_parent constant text := 'jobs_' || p_kind;
  v_name constant text := format('jobs_%s_%s', p_kind, to_char(p_day, 'YYYYMMDD'));
  v_leaf text := v_name;
begin
  if exists (
    select from bugle.history_days d where d.kind = p_kind and d.day = p_day)
  then
    return false;
  end if;
  -- an operator attached one
  insert into bugle.history_days (kind, day, leaf)
  select p_kind, p_day, c.relname
  from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
  where i.inhparent = to_regclass('bugle.' || v_parent)
    and not i.inhdetachpending
    and c.relnamespace = 'bugle'::regnamespace
    and pg_get_expr(c.relpartbound, c.oid) = format('FOR VALUES IN (%L)', p_day);
  if found then
    return true;
  end if;
  -- the name may be taken by a table that was detached and cannot be attached again
  for v_number in 2 .. 99 loop
    exit when to_regclass(format('bugle.%I', v_leaf)) is null;
    v_leaf := format('%s_%s', v_name, v_number);
  end loop;
  execute format('create table bugle.%I (like bugle.%I including defaults including constraints including comments)',
    v_leaf, v_parent);
  execute format('alter table bugle.%I add primary key (id)', v_leaf);
  execute format('create index on bugle.%I using brin (finished_at) with (pages_per_range = 32, autosummarize = on)',
    v_leaf);
  execute format('comment on table bugle.%I is %L', v_leaf, format('Jobs %s on %s (UTC).', p_kind, p_day));
  execute format('alter table bugle.%I attach partition bugle.%I for values in (%L)', v_parent, v_leaf, p_day);
  insert into bugle.history_days (kind, day, leaf) values (p_kind, p_day, v_leaf);
  return true;
exception
  when lock_not_available or deadlock_detected or unique_violation or duplicate_table or invalid_object_definition then
  -- the next call tries again; until then jobs that end go to the newest day
  return false;
end
$$;
comment on function bugle.add_day is
  'Create the leaf of a day of history. False if it exists, or could not be locked at once.';

create or replace function bugle.missing_leaves() returns table (kind text, day date, leaf name, is_there boolean)
language sql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
  select d.kind, d.day, d.leaf, c.oid is not null
  from bugle.history_days d
    left join pg_class c on c.relnamespace = 'bugle'::regnamespace and c.relname = d.leaf
  where not exists (
    select
    from pg_inherits i
    where i.inhrelid = c.oid
      and i.inhparent = to_regclass('bugle.jobs_' || d.kind)
      and not i.inhdetachpending)
$$;
comment on function bugle.missing_leaves is
  'Days of bugle.history_days whose table is not a partition: an operator detached it (is_there) or dropped it.';

-- A table of today or later that was detached is attached again: jobs end there. Every other one is left to the
-- operator who detached it, and must neither be emptied nor dropped by retention.
create or replace function bugle.repair_day(p_kind text, p_day date, p_leaf name) returns text
language plpgsql set lock_timeout = '100ms'
as $$
begin
  if p_day >= (now() at time zone 'utc')::date and to_regclass(format('bugle.%I', p_leaf)) is not null then
    begin
      execute format('alter table bugle.%I attach partition bugle.%I for values in (%L)',
        'jobs_' || p_kind, p_leaf, p_day);
      return format('attached %s %s', p_kind, p_day);
    exception
      when lock_not_available or deadlock_detected then
        return null;
      -- its columns were changed: another table takes its place
      when others then
        null;
    end;
  end if;
  delete from bugle.history_days d where d.kind = p_kind and d.day = p_day and d.leaf = p_leaf;
  return format('forgot %s %s, whose table is no longer a partition', p_kind, p_day);
end
$$;
comment on function bugle.repair_day is 'Attach the table of a day that was detached by hand, or forget the day. '
  'Returns what was done; null if it could not be locked at once.';

create or replace function bugle.kept_days(p_kind text) returns integer
language sql stable
as $$
  select case p_kind when 'failed' then s.failed_days else s.ended_days end from bugle.settings s
$$;
comment on function bugle.kept_days is 'How many full days of history are kept besides today.';

-- A leaf that also took jobs of a later day, which had no leaf of its own, stays.
create or replace function bugle.retire_day(p_kind text, p_day date) returns boolean
language plpgsql set lock_timeout = '100ms'
as $$
declare
  v_leaf name;
  v_cutoff constant timestamptz := ((now() at time zone 'utc')::date - bugle.kept_days(p_kind)) at time zone 'utc';
  v_in_use boolean;
begin
  select d.leaf into v_leaf
  from bugle.history_days d
  where d.kind = p_kind
    and d.day = p_day
    and d.retired_at is null;
  if not found then
    return false;
  end if;
  execute format('select exists (select from bugle.%I l where l.finished_at >= $1)', v_leaf)
  into v_in_use
  using v_cutoff;
  if v_in_use then
    return false;
  end if;
  execute format('truncate bugle.%I', v_leaf);
  update bugle.history_days d set retired_at = now() where d.kind = p_kind and d.day = p_day;
  return true;
exception when lock_not_available or deadlock_detected then
  return false;
end
$$;
comment on function bugle.retire_day is
  'Empty the leaf of a day that retention does not keep. False if it could not be locked at once.';

create or replace function bugle.drop_day(p_kind text, p_day date) returns boolean
language plpgsql set lock_timeout = '20ms'
as $$
declare
  v_leaf name;
begin
  select d.leaf into v_leaf
  from bugle.history_days d
  where d.kind = p_kind
    and d.day = p_day
    and d.retired_at is not null;
  if not found then
    return false;
  end if;
  execute format('drop table bugle.%I', v_leaf);
  delete from bugle.history_days d where d.kind = p_kind and d.day = p_day;
  return true;
exception when lock_not_available or deadlock_detected then
  return false;
end
$$;
comment on function bugle.drop_day is 'Drop the empty leaf of a retired day. False if it could not be locked at once.';

-- A few rows too many cost less than searching for them; there are many only if names of chains are generated. Under
-- the lock no transaction is about to enqueue a chain that seems to be gone: what was enqueued before is seen by the
-- next snapshot.
create or replace function bugle.prune_chains(p_keep integer default 1000, p_limit integer default 5000) returns integer
language plpgsql
as $$
declare
  v_pruned integer;
begin
  if (select count(*) from (select from bugle.chains limit p_keep + 1) c) <= p_keep then
    return 0;
  end if;
  begin
    lock table bugle.chains in share row exclusive mode nowait;
  exception when lock_not_available then
    return 0;
  end;
  delete from bugle.chains c
  where c.id = any (array(
    select o.id
    from bugle.chains o
    where exists (
        select
        from bugle.chains t
        where t.command = o.command
          and t.route = o.route
          and t.steps = o.steps
          and t.id < o.id)
      or not exists (
        select from bugle.jobs_live j where j.steps is not null and j.command = o.command)
    limit p_limit));
  get diagnostics v_pruned = row_count;
  return v_pruned;
end
$$;
comment on function bugle.prune_chains is
  'Delete chains of which no job is live, and rows that are there twice. Returns how many.';

-- At most p_limit rows of each table, so that no call takes long. Starts are not counted: where many leave their period
-- all the time, there would always be something left to do.
create or replace function bugle.prune(p_limit integer default 5000) returns integer
language plpgsql
as $$
declare
  v_cutoff constant timestamptz :=
    now() - make_interval(days => 1 + greatest(bugle.kept_days('failed'), bugle.kept_days('ended')));
  v_stats_cutoff constant timestamptz :=
    now() - make_interval(days => (select s.stats_days + 1 from bugle.settings s));
  v_table record;
  v_rows integer;
  v_pruned integer := 0;
begin
  -- the table; which rows are old: $1 is the cutoff of history, $2 that of statistics; the jobs a row is about, which
  -- keep it while they are live
  for v_table in
    values ('registrations', 'coalesce(o.stopped_at, o.lost_at) < $1', 'null'),
      ('idempotency_keys', 'o.expires_at <= now() and bugle.is_free(o)', 'null'),
      ('attempts', 'o.ended_at < $1', 'o.job'),
      ('step_records', 'o.updated_at < $1', 'o.job'),
      ('schedule_runs', 'o.enqueued_at < $1', 'o.job'),
      ('workflow_jobs', 'o.created_at < $1', 'o.job'),
      ('dependencies', 'o.created_at < $1', 'o.job, o.needs'),
      ('changes', 'o.changed_at < $1', 'null'),
      ('minutes', 'o.minute < $2', 'null'),
      ('doorbell_minutes', 'o.minute < $2', 'null'),
      ('late_updates', 'o.refused_at < $2', 'null'),
      ('watchers', 'o.until < now() - interval ''1 hour''', 'null')
  loop
    execute format('
      delete from bugle.%1$I d
      where d.ctid = any (array(
        select o.ctid
        from bugle.%1$I o
        where %2$s
          and not exists (select from bugle.jobs_live j where j.id in (%3$s))
        limit $3
        for update skip locked))', v_table.column1, v_table.column2, v_table.column3)
    using v_cutoff, v_stats_cutoff, p_limit;
    get diagnostics v_rows = row_count;
    v_pruned := v_pruned + v_rows;
  end loop;
  delete from bugle.starts s
  where s.started_at < now() - coalesce((
    select greatest(q.starts_period, q.starts_per_key_period) from bugle.queues q where q.name = s.queue), '0');
  -- one that is still needed is inserted again; there are many only if queue names are generated
  delete from bugle.claim_locks l
  where (select count(*) from (select from bugle.claim_locks limit 1001) c) > 1000
    and l.ctid = any (array(select o.ctid from bugle.claim_locks o limit p_limit for update skip locked));
  return v_pruned + bugle.prune_chains();
end
$$;
comment on function bugle.prune is 'Delete expired idempotency keys, minutes older than settings.stats_days, and old '
  'rows about attempts, steps, chains, workers, workflows, changes and slots of schedules. Returns how many.';

create or replace function bugle.upkeep() returns text
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_today constant date := (now() at time zone 'utc')::date;
  v_day record;
  v_part record;
  v_done text;
begin
  for v_part in
    select m.part, m.states from bugle.missing_parts() m where m.is_there order by m.part
  loop
    v_done := bugle.attach_part(v_part.part, v_part.states);
    if v_done is not null then
      return v_done;
    end if;
  end loop;
  for v_day in
    select m.kind, m.day, m.leaf from bugle.missing_leaves() m order by m.day, m.kind
  loop
    v_done := bugle.repair_day(v_day.kind, v_day.day, v_day.leaf);
    if v_done is not null then
      return v_done;
    end if;
  end loop;
  for v_day in
    select k.kind, v_today + n.ahead as day
    from (values ('ended'), ('failed')) k (kind)
      cross join generate_series(0, 2) n (ahead)
    order by n.ahead, k.kind
  loop
    if bugle.add_day(v_day.kind, v_day.day) then
      return format('added %s %s', v_day.kind, v_day.day);
    end if;
  end loop;
  for v_day in
    select d.kind, d.day, d.retired_at
    from bugle.history_days d
    where d.day < v_today - bugle.kept_days(d.kind)
    order by d.day, d.kind
  loop
    if v_day.retired_at is null and bugle.retire_day(v_day.kind, v_day.day) then
      return format('retired %s %s', v_day.kind, v_day.day);
    elsif v_day.retired_at is not null and bugle.drop_day(v_day.kind, v_day.day) then
      return format('dropped %s %s', v_day.kind, v_day.day);
    end if;
  end loop;
  if bugle.prune() > 0 then
    return 'pruned';
  end if;
  if bugle.fold_minutes() > 0 then
    return 'folded minutes';
  end if;
  if bugle.fold_dead_letters() > 0 then
    return 'merged the counts of dead letters';
  end if;
  return null;
end
$$;
comment on function bugle.upkeep is 'One step of the upkeep of history: repair a part or a day, add one, retire one, '
  'prune. Returns what was done; null when nothing is left to do: call it until then.';
