begin;

-- of all routes of a queue together, with and without keys
insert into bugle.jobs (command, queue, limit_key, fair_key)
select 'command_' || i % 3, 'many', case when i % 5 = 0 then 'a' end, case when i % 7 = 0 then 'b' end
from generate_series(1, 70) i;
select test.equal(q.ready, 70::bigint, 'all') from bugle.queue_stats q where q.queue = 'many';
select test.equal(count(*), 70::bigint, 'one row each') from bugle.ready_in('many');

create function pg_temp.plan(p_sql text) returns setof text
language plpgsql set enable_seqscan = off set enable_bitmapscan = off
as $$
begin
  return query execute 'explain ' || p_sql;
end
$$;
select test.equal(count(*), 1::bigint, 'an index has all that is needed of jobs without keys')
from pg_temp.plan('select from bugle.ready_in(''many'')') p
where p like '%Index Only Scan using jobs_live_claimable%';

-- the oldest of a priority: the first one, unless it was due before it was enqueued
insert into bugle.jobs (command, queue, run_at)
select 'noop', 'dated', now() - interval '9 days' from generate_series(1, 20);
insert into bugle.jobs (command, queue) values ('noop', 'dated');
update bugle.jobs_live j set run_at = now() - interval '1 hour', created_at = now() - interval '1 hour'
where j.id = (select max(i.id) from bugle.jobs_live i where i.queue = 'dated');
select test.equal(q.oldest_ready_age, '1 hour'::interval, 'the oldest') from bugle.queue_stats q
  where q.queue = 'dated';

rollback;
