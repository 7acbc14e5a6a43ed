begin;

insert into bugle.minutes (
  minute, queue, command, worker, completed, failed, others, run_seconds, wait_seconds, run, wait)
select date_trunc('minute', now()) - make_interval(mins => m.ago), m.queue, 'noop', 0, m.completed, m.failed, 0, 1, 1,
  array_fill(0::bigint, array[9]) || m.completed || array_fill(0::bigint, array[11]),
  array_fill(0::bigint, array[20]) || m.completed
from (values (1, 'a', 4, 1), (1, 'b', 6, 0), (3, 'a', 10, 0), (200, 'a', 99, 0)) m (ago, queue, completed, failed);

select test.equal((t.completed, t.failed)::text, '(20,1)', 'the total comes first')
from (select * from bugle.throughput('1 hour') limit 1) t;
select test.equal(string_agg(t.completed::text, ' ' order by t.at), '10 10', 'then each minute that had attempts')
from bugle.throughput('1 hour') t
where t.at is not null;
select test.equal(t.completed, 14::bigint, 'of one queue')
from bugle.throughput('1 hour', '1 minute', 'a') t
where t.at is null;
select test.equal(t.run_p50_seconds between 0.5 and 1, true, 'times are those of the sum: ' || t.run_p50_seconds)
from bugle.throughput('1 hour') t
where t.at is null;
select test.equal(count(*), 1::bigint, 'nothing is a total of nothing')
from bugle.throughput('1 hour', '1 minute', 'nosuch');

rollback;
