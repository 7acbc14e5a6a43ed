-- Stats: how much, how fast, how well. For people, dashboards and the keeper's metrics.
--
-- Nothing here costs more when there is more history. What ended is not counted in the tables of jobs, but reported by
-- the workers who know it anyway, a few times a minute, and summed up by minute (bugle.minutes); the path of a
-- completion does not know of it. What lives is counted by indexes up to a cap, and estimated beyond it. Failures are
-- grouped among the newest.

create or replace function bugle.bounds() returns double precision[]
language sql immutable parallel safe
return '{0.001,0.002,0.005,0.01,0.02,0.05,0.1,0.2,0.5,1,2,5,10,30,60,120,300,600,1800,3600}'::double precision[];
comment on function bugle.bounds is
  'The upper ends, in seconds, of the spans that times are counted in: the last span is open.';

create or replace function bugle.add_counts(p_some bigint[], p_more bigint[]) returns bigint[]
language plpgsql immutable parallel safe strict
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  for i in 1 .. cardinality(p_more) loop
    p_some[i] := greatest(-9223372036854775808,
      least(9223372036854775807, coalesce(p_some[i], 0)::numeric + p_more[i]));
  end loop;
  return p_some;
end
$$;
comment on function bugle.add_counts is 'Two rows of counts as one.';

-- A function of array_agg, and no aggregate of its own: those cannot be replaced.
create or replace function bugle.sum_counts(p_rows bigint[]) returns bigint[]
language plpgsql immutable parallel safe
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_sum bigint[];
  v_row bigint[];
begin
  if array_ndims(p_rows) is distinct from 2 then
    return p_rows;
  end if;
  foreach v_row slice 1 in array p_rows loop
    v_sum := coalesce(bugle.add_counts(v_sum, v_row), v_row);
  end loop;
  return v_sum;
end
$$;
comment on function bugle.sum_counts is 'Rows of counts, as array_agg makes them, as one.';

-- As Prometheus reads its histograms: evenly spread within a span. Beyond the last bound it can only say that.
create or replace function bugle.quantile(p_counts bigint[], p_share double precision) returns double precision
language plpgsql immutable parallel safe
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_bounds constant double precision[] := bugle.bounds();
  v_wanted constant double precision := p_share * (select sum(c.n) from unnest(p_counts) c (n));
  v_before double precision := 0;
  v_low double precision := 0;
begin
  if coalesce(v_wanted, 0) = 0 then
    return null;
  end if;
  for i in 1 .. cardinality(v_bounds) loop
    if p_counts[i] > 0 and v_before + p_counts[i] >= v_wanted then
      return v_low + (v_bounds[i] - v_low) * (v_wanted - v_before) / p_counts[i];
    end if;
    v_before := v_before + p_counts[i];
    v_low := v_bounds[i];
  end loop;
  return v_low;
end
$$;
comment on function bugle.quantile is 'The time below which this share of the counted ones lies: 0.5 for the median.';

create or replace function bugle.add_minute(p_minute bugle.minutes) returns void
language sql
as $$
  insert into bugle.minutes as m
  select (p_minute).*
  on conflict on constraint minutes_pkey do update
  set completed = m.completed + excluded.completed,
    failed = m.failed + excluded.failed,
    others = m.others + excluded.others,
    run_seconds = m.run_seconds + excluded.run_seconds,
    wait_seconds = m.wait_seconds + excluded.wait_seconds,
    run = bugle.add_counts(m.run, excluded.run),
    wait = bugle.add_counts(m.wait, excluded.wait)
$$;
comment on function bugle.add_minute is 'Add counts to a minute.';

-- Under the minute of the database's clock at which it is reported. A report that is lost is missing only here.
create or replace function bugle.report_minutes(p_worker bigint, p_nonce uuid, p_reports bugle.minute_report[])
returns timestamptz
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_spans constant integer := cardinality(bugle.bounds()) + 1;
begin
  perform bugle.check_worker(p_worker, p_nonce);
  if exists (
    select
    from unnest(p_reports) r
    where cardinality(r.run) is distinct from v_spans
      or cardinality(r.wait) is distinct from v_spans)
  then
    perform bugle.refuse('JB001', format('a report needs %s counts of run times and of waits', v_spans),
      'One for each of bugle.bounds(), and one for what is longer.');
  end if;
  perform set_config('synchronous_commit', 'off', true);
  perform bugle.add_minute((date_trunc('minute', clock_timestamp()), r.queue, r.command, p_worker, r.completed,
    r.failed, r.others, r.run_seconds, r.wait_seconds, r.run, r.wait)::bugle.minutes)
  from unnest(p_reports) r;
  return clock_timestamp();
end
$$;
comment on function bugle.report_minutes is
  'Add what a worker did since its last report, by queue and command. Returns the database''s time.';

-- Late reports are counted under the minute in which they come, so a minute that is over stays as it is.
create or replace function bugle.fold_minutes(p_limit integer default 5000) returns integer
language plpgsql
as $$
declare
  v_folded integer;
  v_old integer;
begin
  with gone as (
    delete from bugle.minutes m
    where m.ctid = any (array(
      select o.ctid
      from bugle.minutes o
      where o.worker > 0
        and o.minute > now() - interval '1 day'
        and o.minute < date_trunc('minute', now()) - interval '1 minute'
      limit p_limit))
    returning m.*
  ), sums as materialized (
    select count(*) as rows, (g.minute, g.queue, g.command, 0, sum(g.completed), sum(g.failed), sum(g.others),
      sum(g.run_seconds), sum(g.wait_seconds), bugle.sum_counts(array_agg(g.run)),
      bugle.sum_counts(array_agg(g.wait)))::bugle.minutes as minute
    from gone g
    group by g.minute, g.queue, g.command
  ), added as materialized (
    select s.rows, bugle.add_minute(s.minute) from sums s
  )
  select coalesce(sum(a.rows), 0) into v_folded from added a;
  delete from bugle.minutes m
  where m.ctid = any (array(
    select o.ctid
    from bugle.minutes o
    where o.minute < now() - make_interval(days => (select s.stats_days + 1 from bugle.settings s))
    limit p_limit));
  get diagnostics v_old = row_count;
  return v_folded + v_old;
end
$$;
comment on function bugle.fold_minutes is
  'Merge the rows of all workers for minutes that are over, and delete those older than settings.stats_days. Returns '
  'how many rows went.';

create or replace view bugle.minute_stats as
select
  m.minute, m.queue, m.command, m.completed, m.failed, m.others,
  m.failed / nullif((m.completed + m.failed)::double precision, 0) as failure_rate,
  bugle.quantile(m.wait, 0.5) as wait_p50_seconds,
  bugle.quantile(m.wait, 0.95) as wait_p95_seconds,
  bugle.quantile(m.run, 0.5) as run_p50_seconds,
  bugle.quantile(m.run, 0.95) as run_p95_seconds,
  m.run_seconds
from (
  select
    n.minute, n.queue, n.command,
    sum(n.completed)::bigint as completed, sum(n.failed)::bigint as failed, sum(n.others)::bigint as others,
    sum(n.run_seconds) as run_seconds,
    bugle.sum_counts(array_agg(n.run)) as run, bugle.sum_counts(array_agg(n.wait)) as wait
  from bugle.minutes n
  group by n.minute, n.queue, n.command) m;
comment on view bugle.minute_stats is
  'Each minute by queue and command: attempts that completed, failed or ended otherwise, waits and run times. Kept '
  'for settings.stats_days.';
select bugle.copy_comments('bugle.minute_stats', 'bugle.minutes');
comment on column bugle.minute_stats.minute is 'The beginning of the minute.';
comment on column bugle.minute_stats.failure_rate is 'The share of those that failed, from 0 to 1.';
comment on column bugle.minute_stats.wait_p50_seconds is
  'Half of them waited less, from when they were due to when they were started.';
comment on column bugle.minute_stats.wait_p95_seconds is '95 of 100 waited less.';
comment on column bugle.minute_stats.run_p50_seconds is 'Half of them ran for less.';
comment on column bugle.minute_stats.run_p95_seconds is '95 of 100 ran for less.';

create or replace view bugle.command_stats as
select
  m.queue, m.command, m.completed, m.failed,
  m.failed / nullif((m.completed + m.failed)::double precision, 0) as failure_rate,
  m.completed / 60.0 as completed_per_minute,
  bugle.quantile(m.wait, 0.5) as wait_p50_seconds,
  bugle.quantile(m.wait, 0.95) as wait_p95_seconds,
  bugle.quantile(m.run, 0.5) as run_p50_seconds,
  bugle.quantile(m.run, 0.95) as run_p95_seconds,
  m.run_seconds / nullif(m.completed + m.failed + m.others, 0) as run_mean_seconds
from (
  select
    n.queue, n.command,
    sum(n.completed)::bigint as completed, sum(n.failed)::bigint as failed, sum(n.others)::bigint as others,
    sum(n.run_seconds) as run_seconds,
    bugle.sum_counts(array_agg(n.run)) as run, bugle.sum_counts(array_agg(n.wait)) as wait
  from bugle.minutes n
  where n.minute > now() - interval '1 hour'
  group by n.queue, n.command) m;
comment on view bugle.command_stats is
  'The last hour by queue and command: how many attempts, how they ended, how long they waited and ran.';
select bugle.copy_comments('bugle.command_stats', 'bugle.minute_stats');
comment on column bugle.command_stats.completed_per_minute is 'Completed attempts in a minute, on average.';
comment on column bugle.command_stats.run_mean_seconds is 'How long one ran, on average.';

-- The parts of a message that differ from one failure to the next are what it is about, not what it is.
create or replace function bugle.fingerprint(p_error text) returns text
language sql immutable parallel safe
return regexp_replace(regexp_replace(regexp_replace(
  left(split_part(ltrim(p_error, E' \n\t'), E'\n', 1), 300),
  E'[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|\\m[0-9a-fA-F]{16,}\\M', '#', 'g'),
  '"[^"]*"|''[^'']*''', '"…"', 'g'),
  '[0-9]+([.,:][0-9]+)*', '#', 'g');
comment on function bugle.fingerprint is
  'What two errors of the same kind have in common: the first line, without numbers, ids and quoted texts.';

create or replace function bugle.group_errors(p_since interval default '1 hour', p_most integer default 10000)
returns table (
  command text, code text, fingerprint text, attempts bigint, jobs bigint, first_at timestamptz, last_at timestamptz,
  last_job bigint, last_error text, is_complete boolean)
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
  return query
  with newest as materialized (
    select a.job, a.code, a.error, a.ended_at
    from bugle.attempts a
    where a.ended_at > now() - least(greatest(p_since, interval '0'), interval '10 years')
    order by a.ended_at desc
    limit greatest(p_most, 0)
  ), groups as (
    select
      n.code, bugle.fingerprint(n.error) as fingerprint, count(*) as attempts, count(distinct n.job) as jobs,
      min(n.ended_at) as first_at, max(n.ended_at) as last_at,
      (array_agg(n.job order by n.ended_at desc))[1] as last_job,
      (array_agg(n.error order by n.ended_at desc))[1] as last_error
    from newest n
    group by n.code, bugle.fingerprint(n.error)
  )
  select
    j.command, g.code, g.fingerprint, g.attempts, g.jobs, g.first_at, g.last_at, g.last_job, left(g.last_error, 1000),
    (select count(*) < p_most from newest)
  from groups g
    left join lateral bugle.job(g.last_job) j on true
  order by g.attempts desc, g.last_at desc;
end
$$;
comment on function bugle.group_errors is
  'Failed attempts of this period, at most p_most of the newest, grouped by what their errors have in common.';

create or replace view bugle.error_groups as
select g.* from bugle.group_errors() g;
comment on view bugle.error_groups is
  'The failed attempts of the last hour, at most the newest 10,000, grouped by what their errors have in common.';
comment on column bugle.error_groups.command is 'The command of the latest.';
comment on column bugle.error_groups.code is 'What kind of failure the executors called it.';
comment on column bugle.error_groups.fingerprint is 'What the errors have in common.';
comment on column bugle.error_groups.attempts is 'How many attempts failed like this.';
comment on column bugle.error_groups.jobs is 'Of how many jobs.';
comment on column bugle.error_groups.first_at is 'The first of them.';
comment on column bugle.error_groups.last_at is 'The latest of them.';
comment on column bugle.error_groups.last_job is 'The job of the latest.';
comment on column bugle.error_groups.last_error is 'What the latest said.';
comment on column bugle.error_groups.is_complete is
  'False if there were more than are looked at: the counts are those of the newest.';
