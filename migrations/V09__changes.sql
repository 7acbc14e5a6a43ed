-- Changes: what operators did to jobs, queues, commands, workers and schedules.

create table bugle.changes (
  id bigint generated always as identity primary key,
  changed_at timestamptz not null default now(),
  verb text not null,
  job bigint,
  step integer,
  queue text,
  command text,
  worker bigint,
  schedule text,
  policy text,
  from_state text,
  to_state text,
  who text not null default session_user,
  application text default current_setting('application_name', true),
  note text,
  constraint a_change_is_about_something check (num_nonnulls(job, queue, worker, schedule, command, policy) = 1)
);

comment on table bugle.changes is
  'What operators did to jobs, queues, commands, workers, schedules and retry policies.';
comment on column bugle.changes.id is 'Rises with time.';
comment on column bugle.changes.changed_at is 'When it was done.';
comment on column bugle.changes.verb is
  'What was done: cancel, pause, resume, restart, remove, reschedule, set_priority, set_state, pause_queue, …';
comment on column bugle.changes.job is 'The job that was changed, if any.';
comment on column bugle.changes.step is 'The position of the step that was changed, if any.';
comment on column bugle.changes.queue is 'The queue that was changed, if any.';
comment on column bugle.changes.command is 'The command that was changed, if any.';
comment on column bugle.changes.worker is 'The worker that was changed, if any.';
comment on column bugle.changes.schedule is 'The schedule that was changed, if any.';
comment on column bugle.changes.policy is 'The retry policy that was changed, if any.';
comment on column bugle.changes.from_state is 'The job''s state before; of limits and policies, what they were.';
comment on column bugle.changes.to_state is
  'The job''s state after, or removed; of limits and policies, what they are.';
comment on column bugle.changes.who is 'The login that did it: see bugle.acting_login().';
comment on column bugle.changes.application is 'The application_name of its session.';
comment on column bugle.changes.note is 'The reason that the operator gave.';
comment on sequence bugle.changes_id_seq is 'Gives bugle.changes.id.';

create index changes_job on bugle.changes (job) where job is not null;
create index changes_changed_at on bugle.changes
  using brin (changed_at) with (pages_per_range = 32, autosummarize = on);
