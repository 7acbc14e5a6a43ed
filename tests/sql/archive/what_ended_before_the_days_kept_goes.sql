begin;

update bugle.settings set ended_days = 3, failed_days = 5;
select bugle.add_day(k, (now() at time zone 'utc')::date - n) from unnest(array['ended', 'failed']) k,
  generate_series(1, 7) n;
-- a job that ended in the first and the last second of each day
insert into bugle.jobs (command, state, reason, finished_at, day)
select 'noop', case d.kind when 'ended' then 'completed' else 'failed' end, 'x', e.at, d.day
from bugle.history_days d,
  lateral (values (d.day::timestamp at time zone 'utc'),
    ((d.day + 1)::timestamp at time zone 'utc' - interval '1 second')) e (at)
where d.day < (now() at time zone 'utc')::date;
select test.equal(count(*), 28::bigint, 'before') from bugle.jobs;

do $$
declare
  v_done text[];
  v_step text;
begin
  loop
    v_step := bugle.upkeep();
    exit when v_step is null;
    v_done := v_done || v_step;
    assert cardinality(v_done) < 100, 'upkeep comes to an end';
  end loop;
  perform test.equal(cardinality(v_done), 12, 'steps: six days retired, and dropped');
end
$$;

select test.equal(string_agg(distinct format('%s %s', j.state, (now() at time zone 'utc')::date - j.day), ', '),
  'completed 1, completed 2, completed 3, failed 1, failed 2, failed 3, failed 4, failed 5',
    'what is left, by age in days') from bugle.jobs j;
select test.equal(count(*), 16::bigint, 'whole days are kept') from bugle.jobs;
select test.equal(min(d.day), (now() at time zone 'utc')::date - 5, 'the oldest day') from bugle.history_days d;
select test.equal(to_regclass('bugle.jobs_ended_' || to_char((now() at time zone 'utc')::date - 4, 'YYYYMMDD')), null,
  'its table');

rollback;
