-- What the tables and columns of limits, order and turns mean. The rest is in 95_comments.sql.

comment on column bugle.queues.max_running is 'At most so many of its jobs run at once, over all workers. Null: no limit.';
comment on column bugle.queues.max_running_per_key is 'At most so many of each limit_key run at once. Null: no limit.';
comment on column bugle.queues.max_starts is 'At most so many of its jobs start in any starts_period. Null: no limit.';
comment on column bugle.queues.starts_period is 'The period of max_starts; it slides.';
comment on column bugle.queues.max_starts_per_key is 'At most so many of each limit_key start in any starts_per_key_period. Null: no limit.';
comment on column bugle.queues.starts_per_key_period is 'The period of max_starts_per_key; it slides.';
comment on column bugle.queues.order_on_retry is 'Behind a job that is retried, paused or waiting, the others of its order_key: block (they wait) or pass.';
comment on column bugle.queues.is_limited is 'Whether anything is to be counted when its jobs are claimed.';
comment on column bugle.commands.max_running is 'At most so many of its jobs run at once, in all queues together. Null: no limit.';
comment on column bugle.changes.command is 'The command, if it was one.';

comment on table bugle.starts is 'What started lately in queues with max_starts or max_starts_per_key: a row for each claim, and for each limit_key in it.';
comment on column bugle.starts.queue is 'bugle.jobs.queue.';
comment on column bugle.starts.key is 'bugle.jobs.limit_key; empty for the queue as a whole.';
comment on column bugle.starts.key_hash is 'A hash of queue and key.';
comment on column bugle.starts.started_at is 'When. Not earlier than bugle.jobs.started_at of the jobs it counts.';
comment on column bugle.starts.starts is 'How many started.';
comment on column bugle.starts.total is 'How many started since the counting began, with these.';

comment on table bugle.turns is 'Where the last claim of a queue with limits or keys stopped, so that the next goes on behind it.';
comment on column bugle.turns.queue is 'bugle.jobs.queue.';
comment on column bugle.turns.fair_key is 'The fair_key that started last.';
comment on column bugle.turns.order_key is 'How far order keys were hopped through.';
comment on column bugle.turns.limit_key is 'How far limit keys were hopped through.';
comment on column bugle.turns.look_at is 'When a period lets go of a start that a claim could have used: somebody is to look then.';
