-- What the tables of chains and their columns mean: \d+ bugle.step_records should teach.

comment on table bugle.chains is 'What is left to do of chains that are live: each chain, and each of its ends. Workers look here for what they can take up.';
comment on column bugle.chains.id is 'Its number.';
comment on sequence bugle.chains_id_seq is 'Gives bugle.chains.id.';
comment on column bugle.chains.command is 'The name of the chain: bugle.jobs.command.';
comment on column bugle.chains.steps is 'The steps that are left.';
comment on column bugle.chains.last_step is 'The last of them: whoever takes up the chain needs an executor for it, wherever it goes on.';
comment on column bugle.chains.key is 'A hash of the steps that are left, by which jobs_live_claimable_chains finds the jobs.';

comment on table bugle.step_records is 'What became of the steps of jobs. People read the view bugle.steps.';
comment on column bugle.step_records.job is 'bugle.jobs.id.';
comment on column bugle.step_records.position is 'Its place in the chain, from 1. Steps that an executor makes come behind those of the chain.';
comment on column bugle.step_records.name is 'The command of the step, or the name its executor gave it.';
comment on column bugle.step_records.within is 'Null for a step of a chain; for one that an executor made, in which step of the chain: 0 if the job is no chain.';
comment on column bugle.step_records.state is 'pending, running, retrying (it failed and is tried again in the same worker), done, skipped or failed.';
comment on column bugle.step_records.attempts is 'How often it was tried, in all attempts of the job.';
comment on column bugle.step_records.attempts_before is 'How often before the present claim.';
comment on column bugle.step_records.claim is 'The claim under which it was last begun.';
comment on column bugle.step_records.worker is 'The worker that last began it.';
comment on column bugle.step_records.first_started_at is 'When it was first begun.';
comment on column bugle.step_records.last_started_at is 'When it was last begun.';
comment on column bugle.step_records.last_ended_at is 'When its last try ended.';
comment on column bugle.step_records.updated_at is 'When this row last changed.';
comment on column bugle.step_records.code is 'The kind of its latest failure.';
comment on column bugle.step_records.error is 'What its latest failure said, at most 10,000 characters.';
comment on column bugle.step_records.output is 'What it put out.';

comment on column bugle.commands.step_retry_policy is 'How it is tried again in the same worker when it is a step of a chain. Null: the policy named step.';
comment on column bugle.commands.steps is 'Makes jobs of this command chains that have no steps of their own.';
comment on column bugle.settings.step_timeout is 'How long one try of a step may take, if neither its command nor its executor says so.';
comment on column bugle.settings.chain_timeout is 'How long a chain may run in one worker, if neither the job nor its command says so.';
comment on column bugle.changes.step is 'The position of the step, if it was one.';

comment on column bugle.unserved.steps is 'Of a chain: the steps that are left. A worker must serve all of them.';
comment on column bugle.running_jobs.step is 'Of a chain: the step that runs.';
comment on column bugle.dead_letters.failed_step is 'The step in which it failed: of the chain, or made by its executor.';
comment on column bugle.steps.job is 'bugle.jobs.id.';
comment on column bugle.steps.position is 'Its place in the chain, from 1. Steps that an executor makes come behind those of the chain.';
comment on column bugle.steps.name is 'The command of the step, or the name its executor gave it.';
comment on column bugle.steps.state is 'pending, running, retrying (in the same worker), waiting, interrupted, done, skipped or failed.';
comment on column bugle.steps.attempts is 'How often it was tried, in all attempts of the job.';
comment on column bugle.steps.first_started_at is 'When it was first begun.';
comment on column bugle.steps.last_started_at is 'When it was last begun.';
comment on column bugle.steps.last_ended_at is 'When its last try ended.';
comment on column bugle.steps.code is 'The kind of its latest failure.';
comment on column bugle.steps.error is 'What its latest failure said.';
comment on column bugle.steps.output is 'What it put out.';
comment on column bugle.steps.worker is 'The worker that last began it.';
comment on column bugle.steps.worker_name is 'That worker''s name.';
comment on column bugle.steps.host is 'Where that worker runs.';
comment on column bugle.steps.within is 'Of a step that an executor made: in which step of the chain; 0 if the job is no chain.';
