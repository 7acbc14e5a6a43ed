-- Who serves which queues, and who keeps the house. People read the view bugle.workers.

create table bugle.registrations (
  id bigint generated always as identity primary key,
  -- told to nobody but its worker: an id can come again after a failover to a replica that lagged, a nonce does not
  nonce uuid not null default gen_random_uuid(),
  name text not null,
  host text,
  process_id integer,
  version text,
  protocol integer not null,
  queues text[] not null,
  slots integer[] not null,
  commands text[] not null,
  -- the session that holds the proof of life, a session advisory lock on life_key, fresh for each connection
  life_key bigint not null,
  backend_pid integer not null,
  started_at timestamptz not null default now(),
  seen_at timestamptz not null default now(),
  running integer not null default 0,
  paused_at timestamptz,
  lost_at timestamptz,
  stopped_at timestamptz,
  constraint every_queue_has_slots check (cardinality(queues) = cardinality(slots))
) with (fillfactor = 50);

create index registrations_backend on bugle.registrations (backend_pid) where stopped_at is null;

-- The keeper's own clock: gaps in its ticks are discounted when it judges the silence of others.
create table bugle.keeping (
  only_row boolean primary key default true,
  keeper bigint,
  ticked_at timestamptz not null default now(),
  watching_since timestamptz not null default now(),
  upkeep_at timestamptz not null default '-infinity',
  constraint there_is_one_row check (only_row)
) with (fillfactor = 50);

insert into bugle.keeping default values;
