begin;

insert into bugle.attempts (job, claim, attempt, ended_at)
values (-1, 1, 1, now() - interval '32 days'), (-1, 2, 2, now() - interval '30 days');
insert into bugle.attempts (job, claim, attempt, ended_at)
  values (bugle.enqueue('noop'), 1, 1, now() - interval '100 days');
select test.register() from generate_series(1, 4);
update bugle.registrations r
set stopped_at = case o.n when 1 then now() - interval '32 days' when 2 then now() - interval '1 day' end,
  lost_at = case o.n when 3 then now() - interval '32 days' end
from (select i.id, row_number() over (order by i.id) as n from bugle.registrations i) o
where o.id = r.id;

select test.equal(bugle.upkeep(), 'pruned', 'upkeep');
select test.equal(bugle.upkeep(), null, 'and again');

select test.equal(count(*), 2::bigint, 'attempts left: the young one, and that of a live job') from bugle.attempts;
select test.equal(count(*), 2::bigint, 'workers left: one alive, one stopped lately') from bugle.registrations;

rollback;
