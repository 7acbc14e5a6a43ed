begin;

insert into bugle.jobs (command, queue, priority)
select 'noop', 'long', i % 50 from generate_series(1, 12000) i;
insert into bugle.jobs (command, queue) select 'noop', 'short' from generate_series(1, 3) i;
update bugle.jobs_live set created_at = now() - interval '1 day', run_at = now() - interval '1 day'
where id = (select min(j.id) from bugle.jobs_live j where j.priority = 49);
analyze bugle.jobs_live;

select test.equal(q.ready between 11500 and 12500, true, 'about 12000: ' || q.ready) from bugle.queue_stats q
  where q.queue = 'long';
select test.equal(q.is_estimate, true, 'and says so') from bugle.queue_stats q where q.queue = 'long';
select test.equal(q.oldest_ready_age, '1 day'::interval, 'the one that starves') from bugle.queue_stats q
  where q.queue = 'long';
select test.equal(q.ready, 3::bigint, 'few are counted') from bugle.queue_stats q where q.queue = 'short';
select test.equal(not q.is_estimate, true, 'and not estimated') from bugle.queue_stats q where q.queue = 'short';

rollback;
