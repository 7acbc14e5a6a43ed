begin;

create temporary table today on commit drop as
select (now() at time zone 'utc')::date as day, to_char(now() at time zone 'utc', 'YYYYMMDD') as name;

-- today's leaf was dropped, tomorrow's detached, the one after changed as well; a past one was detached for a backup
select bugle.add_day('ended', '2001-02-03');
do $$
declare
  v_today date := (now() at time zone 'utc')::date;
begin
  execute format('drop table bugle.jobs_ended_%s', to_char(v_today, 'YYYYMMDD'));
  execute format('alter table bugle.jobs_failed detach partition bugle.jobs_failed_%s',
    to_char(v_today + 1, 'YYYYMMDD'));
  execute format('alter table bugle.jobs_ended detach partition bugle.jobs_ended_%s', to_char(v_today + 2, 'YYYYMMDD'));
  execute format('alter table bugle.jobs_ended_%s add column more text', to_char(v_today + 2, 'YYYYMMDD'));
  execute 'alter table bugle.jobs_ended detach partition bugle.jobs_ended_20010203';
end
$$;
select test.equal(
  array(select m.kind || ' ' || (m.day - t.day) || ' ' || m.is_there from bugle.missing_leaves() m,
    today t where m.day >= t.day order by 1),
  array['ended 0 false', 'ended 2 true', 'failed 1 true'], 'what is missing');

select bugle.upkeep() from generate_series(1, 20);

select test.equal((select count(*) from bugle.missing_leaves()), 0::bigint, 'nothing is missing any more');
select test.equal(
  array(
    select d.kind || ' ' || (d.day - t.day) || ' ' || replace(d.leaf::text, to_char(d.day, 'YYYYMMDD'), 'day')
    from bugle.history_days d, today t where d.day >= t.day order by 1),
  array['ended 0 jobs_ended_day', 'ended 1 jobs_ended_day', 'ended 2 jobs_ended_day_2', 'failed 0 jobs_failed_day',
    'failed 1 jobs_failed_day', 'failed 2 jobs_failed_day'],
  'each day has a leaf; one that cannot be attached is replaced');
select test.equal(to_regclass('bugle.jobs_ended_20010203') is not null, true,
  'a past day that was detached is left to the operator');
select test.equal((select count(*) from bugle.history_days d where d.day = '2001-02-03'), 0::bigint, 'and forgotten');

rollback;
