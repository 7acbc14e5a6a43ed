begin;

do $$
declare
  v_worker constant bigint := test.register('{x}');
begin
  perform bugle.enqueue('x', p_max_attempts => 1) from generate_series(1, 3);
  perform bugle.cancel(min(j.id)) from bugle.jobs j;
  execute 'alter table bugle.jobs detach partition bugle.jobs_failed';
  execute 'alter table bugle.jobs detach partition bugle.jobs_ended';
  execute 'alter table bugle.jobs detach partition bugle.jobs_live';
  perform test.equal(
    array(select format('%s %s %s', m.part, m.states, m.is_there) from bugle.missing_parts() m order by 1),
    '{"jobs_ended {completed,cancelled} t","jobs_failed {failed} t",'
    '"jobs_live {scheduled,ready,running,retrying,paused,waiting} t"}'::text[], 'what is missing');
  perform test.refused($sql$insert into bugle.jobs (command) values ('x')$sql$, '23514');

  perform bugle.upkeep() from generate_series(1, 10);

  perform test.equal((select count(*) from bugle.missing_parts()), 0::bigint, 'nothing is missing any more');
  perform bugle.enqueue('x', p_max_attempts => 1);
  perform bugle.cancel(max(j.id)) from bugle.jobs j;
  perform test.equal(
    (select string_agg(format('%s %s', s.state, s.jobs), ', ' order by s.state)
      from (select j.state, count(*) as jobs from bugle.jobs j group by j.state) s),
    'cancelled 2, ready 2', 'all jobs are there, and jobs can be enqueued and end');
end
$$;

rollback;
