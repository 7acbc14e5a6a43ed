-- What psql shows with \d+ about jobs that have to do with each other.

comment on table bugle.dependencies is 'One row for each job that another waits, or has waited, for. What came of it stays readable while the other is kept.';
comment on column bugle.dependencies.job is 'The job that waits: bugle.jobs.id.';
comment on column bugle.dependencies.needs is 'The job it waits for.';
comment on column bugle.dependencies.name is 'What the workflow calls the needed job.';
comment on column bugle.dependencies.on_failure is 'What becomes of the waiting job if the needed one fails or is cancelled: fail, or run all the same.';
comment on column bugle.dependencies.child is 'Whether the waiting job''s executor made the needed one.';
comment on column bugle.dependencies.state is 'How the needed job ended. Null: it has not.';
comment on column bugle.dependencies.reason is 'Why it ended so.';
comment on column bugle.dependencies.result is 'What it returned.';
comment on column bugle.dependencies.error is 'What went wrong, if it did not complete.';
comment on column bugle.dependencies.ended_at is 'When it ended, or was found to have.';
comment on column bugle.dependencies.created_at is 'Since when the one waits for the other.';

comment on table bugle.workflow_jobs is 'The names that workflows gave to their jobs. bugle.workflow(id) shows them with their states.';
comment on column bugle.workflow_jobs.job is 'bugle.jobs.id.';
comment on column bugle.workflow_jobs.workflow is 'The same for all jobs of a workflow: the smallest of their ids.';
comment on column bugle.workflow_jobs.name is 'What the workflow calls it.';
comment on column bugle.workflow_jobs.created_at is 'When it was enqueued.';

comment on column bugle.commands.on_success is 'The command that is enqueued when a job of this one is completed, unless the job names another.';
comment on column bugle.commands.on_failure is 'The command that is enqueued when a job of this one has failed, unless the job names another.';

comment on type bugle.followed is 'What is to be known about a job that has just ended.';
comment on column bugle.followed.id is 'bugle.jobs.id.';
comment on column bugle.followed.state is 'completed, failed or cancelled.';
comment on column bugle.followed.reason is 'Why, if it did not complete.';
comment on column bugle.followed.command is 'Its command.';
comment on column bugle.followed.queue is 'Its queue.';
comment on column bugle.followed.headers is 'Its headers, which a follow-up gets too.';
comment on column bugle.followed.watched is 'Whether something is to be done; else it is only told to who listens.';
comment on column bugle.followed.on_success is 'The command that follows its completion.';
comment on column bugle.followed.on_failure is 'The command that follows its failure.';
comment on column bugle.followed.result is 'What it returned.';
comment on column bugle.followed.error is 'What went wrong.';
