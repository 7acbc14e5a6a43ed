-- What workers did, minute by minute, as they report it; and indexes by which the present is counted without a scan.

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

alter table bugle.settings
  add column stats_days integer not null default 7,
  add constraint stats_days_are_sane check (stats_days between 0 and 3650);

-- The newest failures first, which BRIN cannot say.
create index attempts_by_end on bugle.attempts (ended_at);
drop index bugle.attempts_ended_at;

create index jobs_live_paused on bugle.jobs_live (queue) where state = 'paused';

-- With what is counted, so that nobody has to fetch the rows for it.
drop index bugle.jobs_live_due;
create index jobs_live_due on bugle.jobs_live (run_at) include (queue, state) where state in ('scheduled', 'retrying');
