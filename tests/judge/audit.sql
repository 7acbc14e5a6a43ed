-- What happened to each job, step by step, written in the transaction that did it. For tests: installed beside the
-- schema,
-- so that what the tables went through can be judged, and not only where they ended.

create schema audit;

create table audit.steps (
  seq bigint generated always as identity primary key,
  at timestamptz not null,
  xid bigint not null,
  op text not null,
  job bigint not null,
  old jsonb,
  new jsonb
);

create function audit.note() returns trigger
language plpgsql
security definer
set search_path = pg_catalog, audit, pg_temp
as $$
begin
  insert into audit.steps (at, xid, op, job, old, new)
  values (
    -- a test that clears its table away says so: set audit.op = 'cleanup'
    clock_timestamp(), txid_current(), coalesce(nullif(current_setting('audit.op', true), ''), lower(tg_op)),
    case when tg_op = 'DELETE' then old.id else new.id end,
    case when tg_op <> 'INSERT' then jsonb_build_object('state', old.state, 'claim', old.claim, 'attempt', old.attempt,
      'crashes', old.crashes, 'worker', old.worker, 'reason', old.reason, 'command', old.command, 'step', old.step,
      'unique_key', old.unique_key, 'queue', old.queue, 'limit_key', old.limit_key, 'order_key', old.order_key,
        'deadline', extract(epoch from old.deadline)) end,
    case when tg_op <> 'DELETE' then jsonb_build_object('state', new.state, 'claim', new.claim, 'attempt', new.attempt,
      'crashes', new.crashes, 'worker', new.worker, 'reason', new.reason, 'command', new.command, 'step', new.step,
      'unique_key', new.unique_key, 'queue', new.queue, 'limit_key', new.limit_key, 'started',
        extract(epoch from new.started_at), 'order_key', new.order_key, 'deadline',
        extract(epoch from new.deadline)) end);
  return null;
end
$$;

create trigger audit after insert or update or delete on bugle.jobs for each row execute function audit.note();

-- Which steps of which jobs are done: of chains by their place, of executors by their name.
create table audit.steps_done (
  at timestamptz not null,
  job bigint not null,
  claim bigint,
  step text not null
);

create function audit.note_step() returns trigger
language plpgsql
security definer
set search_path = pg_catalog, audit, pg_temp
as $$
begin
  insert into audit.steps_done (at, job, claim, step)
  values (clock_timestamp(), new.job, new.claim,
    case when new.within is null then new.position::text else new.name end);
  return null;
end
$$;

create trigger audit after insert or update of state on bugle.step_records for each row
when (new.state in ('done', 'skipped')) execute function audit.note_step();
