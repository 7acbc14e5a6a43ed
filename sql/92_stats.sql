-- stats: throughput, waits, run times and errors by minute. For people and dashboards.
--
-- The cost does not grow with history. Outcomes are not counted in the tables of jobs: workers report them a few times
-- a minute, and they are summed by minute (bugle.minutes), so completions pay nothing. Errors are grouped among the
-- newest failed attempts.

create or replace function bugle.bounds() returns double precision[]
language sql immutable parallel safe
return '{0.001,0.002,0.005,0.01,0.02,0.05,0.1,0.2,0.5,1,2,5,10,30,60,120,300,600,1800,3600}'::double precision[];
comment on function bugle.bounds is
  'The upper ends, in seconds, of the spans that times are counted in: the last span is open.';

create or replace function bugle.add_counts(p_some bigint[], p_more bigint[]) returns bigint[]
language plpgsql immutable parallel safe strict set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  for i in 1 .. cardinality(p_more) loop
    p_some[i] := greatest(-9223372036854775808,
      least(9223372036854775807, coalesce(p_some[i], 0)::numeric + p_more[i]));
  end loop;
  return p_some;
end
$$;
comment on function bugle.add_counts is 'The sum of two arrays of counts.';

create or replace aggregate bugle.total_counts(bigint[]) (
  sfunc = bugle.add_counts, stype = bigint[], combinefunc = bugle.add_counts, parallel = safe);
comment on aggregate bugle.total_counts(bigint[]) is 'The sum of arrays of counts.';

-- As Prometheus does for histograms: evenly spread within a span. Beyond the last bound the last bound is returned.
create or replace function bugle.quantile(p_counts bigint[], p_share double precision) returns double precision
language plpgsql immutable parallel safe set search_path = pg_catalog, bugle, pg_temp
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
comment on function bugle.quantile is 'The time below which this share of the counts lies: 0.5 for the median.';

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

-- Counted in the minute of the report, by the database's clock. A lost report is missing only here.
create or replace function bugle.report_minutes(
  p_worker bigint, p_nonce uuid, p_reports bugle.minute_report[], p_bells bugle.bell_report[] default null)
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
  -- in one order: two workers add to the same rows
  insert into bugle.doorbell_minutes as d (minute, queue, rings, found_by_poll)
  select date_trunc('minute', clock_timestamp()), b.queue, sum(b.rings), sum(b.found_by_poll)
  from unnest(p_bells) b
  group by b.queue
  order by b.queue
  on conflict (minute, queue) do update
  set rings = d.rings + excluded.rings,
    found_by_poll = d.found_by_poll + excluded.found_by_poll;
  update bugle.registrations r
  set completed = r.completed + s.completed,
    failed = r.failed + s.failed
  from (select sum(u.completed) as completed, sum(u.failed) as failed from unnest(p_reports) u) s
  where r.id = p_worker
    and s.completed + s.failed > 0;
  return clock_timestamp();
end
$$;
comment on function bugle.report_minutes is
  'Add what a worker did since its last report, by queue and command, and how often it was notified. Returns the '
  'database''s time.';

-- Late reports are counted in the minute in which they arrive, so a past minute does not change.
create or replace function bugle.fold_minutes(p_limit integer default 5000) returns integer
language plpgsql
as $$
declare
  v_folded integer;
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
      sum(g.run_seconds), sum(g.wait_seconds), bugle.total_counts(g.run),
      bugle.total_counts(g.wait))::bugle.minutes as minute
    from gone g
    group by g.minute, g.queue, g.command
  ), added as materialized (
    select s.rows, bugle.add_minute(s.minute) from sums s
  )
  select coalesce(sum(a.rows), 0) into v_folded from added a;
  return v_folded;
end
$$;
comment on function bugle.fold_minutes is
  'Merge the rows of all workers for minutes that are over. Returns how many rows went.';

create or replace function bugle.fold_dead_letters(p_limit integer default 5000) returns integer
language plpgsql
as $$
declare
  v_folded integer;
begin
  with gone as (
    delete from bugle.dead_letter_counts d
    where d.id in (
      select o.id
      from (
        select c.id, count(*) over (partition by c.queue, c.reason) as rows
        from (select * from bugle.dead_letter_counts b limit p_limit) c) o
      where o.rows > 1)
    returning d.*
  ), sums as (
    insert into bugle.dead_letter_counts (queue, reason, jobs)
    select g.queue, g.reason, sum(g.jobs)
    from gone g
    group by g.queue, g.reason
  )
  select count(*) into v_folded from gone;
  return v_folded;
end
$$;
comment on function bugle.fold_dead_letters is
  'Merge the counts of dead letters of the same queue and reason. Returns how many rows were merged.';

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
    bugle.total_counts(n.run) as run, bugle.total_counts(n.wait) as wait
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

-- Charts. The counts are summed element by element: unnesting the arrays of a thousand commands took ten times as long.
-- The total is that of the buckets: a week has few of them, and a million rows.
create or replace function bugle.throughput(
  p_since interval default '1 hour', p_bucket interval default '1 minute', p_queue text default null,
  p_command text default null)
returns table (
  at timestamptz, completed bigint, failed bigint, others bigint, wait_p50_seconds double precision,
  wait_p95_seconds double precision, wait_p99_seconds double precision, run_p50_seconds double precision,
  run_p95_seconds double precision, run_p99_seconds double precision)
language sql stable
security definer
set search_path = pg_catalog, bugle, pg_temp
set jit = off
as $$
  with buckets as materialized (
    select b.at, sum(m.completed)::bigint as completed, sum(m.failed)::bigint as failed,
      sum(m.others)::bigint as others,
      array[
        sum(m.wait[1]), sum(m.wait[2]), sum(m.wait[3]), sum(m.wait[4]), sum(m.wait[5]),
        sum(m.wait[6]), sum(m.wait[7]), sum(m.wait[8]), sum(m.wait[9]), sum(m.wait[10]),
        sum(m.wait[11]), sum(m.wait[12]), sum(m.wait[13]), sum(m.wait[14]), sum(m.wait[15]),
        sum(m.wait[16]), sum(m.wait[17]), sum(m.wait[18]), sum(m.wait[19]), sum(m.wait[20]),
        sum(m.wait[21])]::bigint[] as wait,
      array[
        sum(m.run[1]), sum(m.run[2]), sum(m.run[3]), sum(m.run[4]), sum(m.run[5]),
        sum(m.run[6]), sum(m.run[7]), sum(m.run[8]), sum(m.run[9]), sum(m.run[10]),
        sum(m.run[11]), sum(m.run[12]), sum(m.run[13]), sum(m.run[14]), sum(m.run[15]),
        sum(m.run[16]), sum(m.run[17]), sum(m.run[18]), sum(m.run[19]), sum(m.run[20]),
        sum(m.run[21])]::bigint[] as run
    from bugle.minutes m
      -- months have no fixed length, and a bucket is a minute at least
      cross join lateral date_bin(make_interval(secs => least(greatest(extract(epoch from p_bucket), 60), 315360000)),
        m.minute, '2000-01-01') b (at)
    where m.minute > now() - least(greatest(p_since, interval '0'), interval '10 years')
      and (p_queue is null or m.queue = p_queue)
      and (p_command is null or m.command = p_command)
    group by b.at
  )
  select t.at, coalesce(t.completed, 0), coalesce(t.failed, 0), coalesce(t.others, 0),
    bugle.quantile(t.wait, 0.5), bugle.quantile(t.wait, 0.95), bugle.quantile(t.wait, 0.99),
    bugle.quantile(t.run, 0.5), bugle.quantile(t.run, 0.95), bugle.quantile(t.run, 0.99)
  from (
    select null, sum(b.completed)::bigint, sum(b.failed)::bigint, sum(b.others)::bigint,
      bugle.total_counts(b.wait), bugle.total_counts(b.run)
    from buckets b
    union all
    select b.* from buckets b) t (at, completed, failed, others, wait, run)
  order by t.at nulls first
$$;
comment on function bugle.throughput is
  'Attempts and their wait and run times in each bucket of a period, optionally of one queue or command. The first '
  'row, without a time, is the total. Buckets without attempts are left out.';

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
    bugle.total_counts(n.run) as run, bugle.total_counts(n.wait) as wait
  from bugle.minutes n
  where n.minute > now() - interval '1 hour'
  group by n.queue, n.command) m;
comment on view bugle.command_stats is
  'The last hour by queue and command: how many attempts, how they ended, how long they waited and ran.';
select bugle.copy_comments('bugle.command_stats', 'bugle.minute_stats');
comment on column bugle.command_stats.completed_per_minute is 'Completed attempts in a minute, on average.';
comment on column bugle.command_stats.run_mean_seconds is 'How long one ran, on average.';

create or replace function bugle.group_errors(p_since interval default '1 hour', p_most integer default 10000)
returns table (
  command text, code text, fingerprint text, attempts bigint, jobs bigint, first_at timestamptz, last_at timestamptz,
  last_job bigint, last_error text, is_complete boolean, error_line text, hosts text[])
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off set jit = off
as $$
begin
  return query
  with newest as materialized (
    select a.job, a.command, a.code, a.error, a.ended_at, a.worker
    from bugle.attempts a
    where a.outcome in ('failed', 'timed_out', 'rescued')
      and a.ended_at > now() - least(greatest(p_since, interval '0'), interval '10 years')
    order by a.ended_at desc
    limit greatest(p_most, 0)
  ), messages as (
    -- one fingerprint for equal messages: it costs more than everything else here
    select d.error, bugle.fingerprint(d.error) as fingerprint
    from (select distinct n.error from newest n) d
  ), hosts as materialized (
    select r.id as worker, r.host
    from (select distinct n.worker from newest n) w
      join bugle.registrations r on r.id = w.worker
  ), groups as (
    select
      n.command, n.code, m.fingerprint, count(*) as attempts, count(distinct n.job) as jobs,
      min(n.ended_at) as first_at, max(n.ended_at) as last_at,
      (array_agg(n.job order by n.ended_at desc))[1] as last_job,
      (array_agg(n.error order by n.ended_at desc))[1] as last_error,
      (array_agg(distinct h.host) filter (where h.host is not null))[1:20] as hosts
    from newest n
      left join messages m on m.error = n.error
      left join hosts h on h.worker = n.worker
    group by n.command, n.code, m.fingerprint
  )
  select
    g.command, g.code, g.fingerprint, g.attempts, g.jobs, g.first_at, g.last_at, g.last_job, left(g.last_error, 1000),
    (select count(*) < p_most from newest), bugle.error_line(g.last_error), coalesce(g.hosts, '{}')
  from groups g
  order by g.attempts desc, g.last_at desc;
end
$$;
comment on function bugle.group_errors is
  'Failed attempts of this period, at most p_most of the newest, grouped by what their errors have in common.';

create or replace view bugle.error_groups as
select g.* from bugle.group_errors() g;
comment on view bugle.error_groups is
  'The failed attempts of the last hour, at most the newest 10,000, grouped by what their errors have in common.';
comment on column bugle.error_groups.command is 'The command of these jobs.';
comment on column bugle.error_groups.code is 'The error code given by the executors.';
comment on column bugle.error_groups.fingerprint is 'What the errors have in common.';
comment on column bugle.error_groups.attempts is 'How many attempts failed like this.';
comment on column bugle.error_groups.jobs is 'Of how many jobs.';
comment on column bugle.error_groups.first_at is 'The first of them.';
comment on column bugle.error_groups.last_at is 'The latest of them.';
comment on column bugle.error_groups.last_job is 'The job of the latest.';
comment on column bugle.error_groups.last_error is 'The latest error.';
comment on column bugle.error_groups.is_complete is
  'False if there were more failures than were read: the counts cover the newest.';
comment on column bugle.error_groups.error_line is 'The line of the latest error that says what went wrong.';
comment on column bugle.error_groups.hosts is
  'The hosts of the workers that ran them, at most 20, as long as these workers are known.';
