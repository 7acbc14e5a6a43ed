-- What people did to jobs, queues and workers by hand.

create table bugle.changes (
  id bigint generated always as identity primary key,
  changed_at timestamptz not null default now(),
  verb text not null,
  job bigint,
  queue text,
  worker bigint,
  from_state text,
  to_state text,
  who text not null default session_user,
  application text default current_setting('application_name', true),
  note text,
  constraint a_change_is_about_something check (num_nonnulls(job, queue, worker) = 1)
);

create index changes_job on bugle.changes (job) where job is not null;
create index changes_changed_at on bugle.changes using brin (changed_at) with (pages_per_range = 32, autosummarize = on);

create type bugle.operated as (
  id bigint,
  done boolean,
  state text,
  why text
);
