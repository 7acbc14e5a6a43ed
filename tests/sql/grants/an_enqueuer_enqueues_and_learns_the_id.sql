begin;

set local role bugle_enqueuer;

insert into bugle.jobs (command, payload, queue, priority, run_at, deadline, timeout, max_attempts, retry_policy,
  headers)
values ('noop', '{}', 'q', 1, now() + interval '1 hour', now() + interval '1 day', '1 minute', 3, 'fixed', '{}')
returning id;
insert into bugle.jobs (command) values ('noop');
select bugle.enqueue('noop', p_queue => 'q');
select test.equal(count(j.id), 3::bigint, 'ids are seen') from bugle.jobs j;

rollback;
