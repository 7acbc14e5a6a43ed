begin;

select bugle.enqueue('noop');
update bugle.jobs_live set created_at = now() - interval '3 hours', run_at = now() - interval '2 hours';

select test.equal(q.oldest_ready_age, '2 hours', 'since it could have been run') from bugle.queue_stats q;

rollback;
