begin;

create temporary table days on commit drop as select distinct d.day from bugle.history_days d;
select test.equal(array_agg(d.day order by d.day),
  array(select (now() at time zone 'utc')::date + n from generate_series(0, 2) n), 'days after a migration')
  from days d;
select test.equal(bugle.upkeep(), null, 'nothing is left to do');

select bugle.drop_day(d.kind, d.day) from bugle.history_days d where d.retired_at is not null;
update bugle.history_days d set retired_at = now() where d.day > (now() at time zone 'utc')::date;
select bugle.drop_day(d.kind, d.day) from bugle.history_days d where d.retired_at is not null;

select test.equal(array(select bugle.upkeep() from generate_series(1, 5)), array[
    format('added ended %s', t + 1), format('added failed %s', t + 1), format('added ended %s', t + 2),
      format('added failed %s', t + 2), null],
  'one step at a time')
from (select (now() at time zone 'utc')::date as t) today;
select test.equal((select count(*) from pg_inherits i where i.inhparent = 'bugle.jobs_ended'::regclass), 4::bigint,
  'leaves: three days, and by hand');

rollback;
