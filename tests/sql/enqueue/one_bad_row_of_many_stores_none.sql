begin;

select test.refused($$
  insert into bugle.jobs (command, priority)
  select case n when 500 then '' else 'noop' end, n
  from generate_series(1, 1000) n$$, 'JB001', 'column "command"%');

select test.equal(count(*), 0::bigint, 'nothing is stored') from bugle.jobs;

rollback;
