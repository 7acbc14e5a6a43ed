-- cron: when a cron expression fires next. Pure: the clock is an argument.
--
-- The search runs on the wall clock of the schedule's time zone and jumps from field to field. Daylight saving time is
-- handled in one place, bugle.next_cron_slot:
--   a time that does not exist (clocks go forward): the first moment after the gap, once;
--   a time that comes twice (clocks go back): once, at the first;
--   a schedule with all 24 hours counts real hours instead: it misses nothing in a gap, and runs in both of the hours
--   that have the same name.
-- Moments are timestamps in UTC without a zone, so that no sum depends on the time zone of the session.

create or replace function bugle.refuse_cron(p_field text, p_text text, p_why text) returns boolean
language plpgsql
as $$
begin
  return bugle.refuse('JB005', format('column "cron", field "%s" (%s): %s', p_field, bugle.quoted(p_text), p_why),
    'Five fields: minute hour day-of-month month day-of-week, or six with the second first, or @hourly, @daily, '
    '@weekly, @monthly, @yearly.');
end
$$;
comment on function bugle.refuse_cron is 'Reject a cron expression, naming the field at fault.';

create or replace function bugle.cron_value(p_text text, p_field text, p_least integer, p_most integer, p_names text[])
returns integer
language plpgsql immutable
as $$
declare
  v_value constant integer := case
    when p_text ~ '^[0-9]{1,4}$' then p_text::integer
    else array_position(p_names, upper(p_text)) - 1 + p_least end;
begin
  if v_value is null then
    perform bugle.refuse_cron(p_field, p_text, concat(format('not a number from %s to %s', p_least, p_most),
      ', nor one of ' || array_to_string(p_names, ', ')));
  elsif v_value not between p_least and p_most then
    perform bugle.refuse_cron(p_field, p_text, format('not from %s to %s', p_least, p_most));
  end if;
  return v_value;
end
$$;
comment on function bugle.cron_value is 'One number or name in a field of a cron expression.';

-- The values of one field: a list of *, a, a-b, each with a step or without.
create or replace function bugle.cron_values(
  p_text text, p_field text, p_least integer, p_most integer, p_names text[] default null)
returns integer[]
language plpgsql immutable
as $$
declare
  v_part text;
  v_range text;
  v_step text;
  v_from integer;
  v_to integer;
  v_values integer[] := '{}';
begin
  foreach v_part in array string_to_array(p_text, ',') loop
    if v_part !~ '^([*]|[0-9A-Za-z]+(-[0-9A-Za-z]+)?)(/[0-9]+)?$' then
      perform bugle.refuse_cron(p_field, p_text,
        'write *, a value, a range a-b, a step */n or a-b/n, or a list of these');
    end if;
    v_range := split_part(v_part, '/', 1);
    v_step := nullif(split_part(v_part, '/', 2), '');
    if v_step is not null and (length(v_step) > 4 or v_step::integer = 0) then
      perform bugle.refuse_cron(p_field, v_part, 'a step is at least 1 and at most 9999');
    end if;
    if v_range = '*' then
      v_from := p_least;
      v_to := p_most;
    else
      v_from := bugle.cron_value(split_part(v_range, '-', 1), p_field, p_least, p_most, p_names);
      v_to := case
        when v_range like '%-%' then bugle.cron_value(split_part(v_range, '-', 2), p_field, p_least, p_most, p_names)
        when v_step is not null then p_most
        else v_from end;
    end if;
    if v_from > v_to then
      perform bugle.refuse_cron(p_field, v_part,
        format('a range must ascend, but %s is greater than %s', v_from, v_to));
    end if;
    v_values := v_values || array(select generate_series(v_from, v_to, coalesce(v_step::integer, 1)));
  end loop;
  return array(select distinct v.value from unnest(v_values) v (value) order by v.value);
end
$$;
comment on function bugle.cron_values is 'The values that one field of a cron expression allows.';

create or replace function bugle.parse_cron(p_cron text) returns bugle.cron
language plpgsql immutable
as $$
declare
  v_text constant text := btrim(p_cron, e' \t\r\n');
  v_name constant text := lower(v_text);
  v_fields text[];
  v_cron bugle.cron;
begin
  v_fields := regexp_split_to_array(case
    when v_name in ('@yearly', '@annually') then '0 0 1 1 *'
    when v_name = '@monthly' then '0 0 1 * *'
    when v_name = '@weekly' then '0 0 * * 0'
    when v_name in ('@daily', '@midnight') then '0 0 * * *'
    when v_name = '@hourly' then '0 * * * *'
    else v_text end, '[[:space:]]+');
  if p_cron is null then
    perform bugle.refuse_schedule('cron', null, 'the expression is missing', 'For example 0 9 * * MON-FRI.');
  elsif length(p_cron) > 1000 then
    perform bugle.refuse_cron('all', p_cron, format('at most 1000 characters, not %s', length(p_cron)));
  elsif v_text like '@%' and cardinality(v_fields) = 1 then
    perform bugle.refuse_cron('all', p_cron, 'not a known name');
  elsif cardinality(v_fields) not in (5, 6) or v_text = '' then
    perform bugle.refuse_cron('all', p_cron, format('there must be 5 fields, or 6, not %s',
      case v_text when '' then 0 else cardinality(v_fields) end));
  end if;
  if cardinality(v_fields) = 5 then
    v_fields := '{0}'::text[] || v_fields;
  end if;
  v_cron.seconds := bugle.cron_values(v_fields[1], 'second', 0, 59);
  v_cron.minutes := bugle.cron_values(v_fields[2], 'minute', 0, 59);
  v_cron.hours := bugle.cron_values(v_fields[3], 'hour', 0, 23);
  v_cron.days := bugle.cron_values(v_fields[4], 'day of month', 1, 31);
  v_cron.months := bugle.cron_values(v_fields[5], 'month', 1, 12,
    '{JAN,FEB,MAR,APR,MAY,JUN,JUL,AUG,SEP,OCT,NOV,DEC}');
  -- 0 and 7 are both Sunday; 5-7 is Friday to Sunday
  v_cron.weekdays := array(
    select distinct v.value % 7
    from unnest(bugle.cron_values(v_fields[6], 'day of week', 0, 7, '{SUN,MON,TUE,WED,THU,FRI,SAT}')) v (value)
    order by 1);
  -- as in Vixie cron: a field that begins with * does not restrict the day
  v_cron.either_day := v_fields[4] not like '*%' and v_fields[6] not like '*%';
  v_cron.every_hour := cardinality(v_cron.hours) = 24;
  return v_cron;
end
$$;
comment on function bugle.parse_cron is 'Parse a cron expression, or reject it, naming the field.';

create or replace function bugle.cron_has_day(p_cron bugle.cron, p_day date) returns boolean
language plpgsql immutable
as $$
declare
  v_by_day constant boolean := extract(day from p_day)::integer = any (p_cron.days);
  v_by_weekday constant boolean := extract(dow from p_day)::integer = any (p_cron.weekdays);
begin
  return case when p_cron.either_day then v_by_day or v_by_weekday else v_by_day and v_by_weekday end;
end
$$;
comment on function bugle.cron_has_day is
  'Whether a day fits the day fields of a cron expression: either of them if both are restricted.';

create or replace function bugle.next_value(p_values integer[], p_after integer) returns integer
language plpgsql immutable
as $$
begin
  return (select min(v.value) from unnest(p_values) v (value) where v.value > p_after);
end
$$;
comment on function bugle.next_value is
  'The least of these values that is greater than p_after. Null if there is none.';

-- The next February 29 is at most eight years away.
create or replace function bugle.next_wall_time(p_cron bugle.cron, p_after timestamp) returns timestamp
language plpgsql immutable
as $$
declare
  v_day date := p_after::date;
  v_last constant date := (p_after + interval '8 years')::date + 1;
  v_hour constant integer := extract(hour from p_after);
  v_minute constant integer := extract(minute from p_after);
  v_second constant integer := floor(extract(second from p_after));
  v_next integer;
begin
  -- later in the same minute, in the same hour, on the same day
  if extract(month from v_day)::integer = any (p_cron.months) and bugle.cron_has_day(p_cron, v_day) then
    v_next := bugle.next_value(p_cron.seconds, v_second);
    if v_next is not null and v_minute = any (p_cron.minutes) and v_hour = any (p_cron.hours) then
      return v_day + make_time(v_hour, v_minute, v_next);
    end if;
    v_next := bugle.next_value(p_cron.minutes, v_minute);
    if v_next is not null and v_hour = any (p_cron.hours) then
      return v_day + make_time(v_hour, v_next, p_cron.seconds[1]);
    end if;
    v_next := bugle.next_value(p_cron.hours, v_hour);
    if v_next is not null then
      return v_day + make_time(v_next, p_cron.minutes[1], p_cron.seconds[1]);
    end if;
  end if;
  loop
    v_day := v_day + 1;
    if v_day > v_last then
      return null;
    elsif extract(month from v_day)::integer <> all (p_cron.months) then
      v_day := (date_trunc('month', v_day::timestamp) + interval '1 month')::date - 1;
    elsif bugle.cron_has_day(p_cron, v_day) then
      return v_day + make_time(p_cron.hours[1], p_cron.minutes[1], p_cron.seconds[1]);
    end if;
  end loop;
end
$$;
comment on function bugle.next_wall_time is
  'The next wall-clock time that fits a cron expression, strictly later, whether or not it exists in a time zone.';

create or replace function bugle.wall_time(p_timezone text, p_utc timestamp) returns timestamp
language sql immutable
return p_utc at time zone 'UTC' at time zone p_timezone;
comment on function bugle.wall_time is 'What the clocks of a time zone show at a moment, given in UTC.';

-- If a time occurs twice, Postgres takes the second; if it does not exist, Postgres continues counting from before the
-- gap.
create or replace function bugle.utc_time(p_timezone text, p_wall timestamp) returns timestamp
language sql immutable
return p_wall at time zone p_timezone at time zone 'UTC';
comment on function bugle.utc_time is
  'The moment, in UTC, at which the clocks of a time zone show a time: the second one if it occurs twice.';

-- By bisection: there is one change of the clocks between the two.
create or replace function bugle.clock_change(p_timezone text, p_before timestamp, p_after timestamp) returns timestamp
language plpgsql immutable
as $$
declare
  v_offset constant interval := bugle.wall_time(p_timezone, p_before) - p_before;
  v_before timestamp := p_before;
  v_after timestamp := p_after;
  v_middle timestamp;
begin
  while v_after - v_before > interval '1 second' loop
    v_middle := date_trunc('second', v_before + (v_after - v_before) / 2);
    if bugle.wall_time(p_timezone, v_middle) - v_middle = v_offset then
      v_before := v_middle;
    else
      v_after := v_middle;
    end if;
  end loop;
  return v_after;
end
$$;
comment on function bugle.clock_change is 'The first second after the clocks of a time zone changed, in UTC.';

create or replace function bugle.next_cron_slot(p_cron bugle.cron, p_timezone text, p_after timestamptz)
returns timestamptz
language plpgsql immutable
as $$
declare
  v_after constant timestamp := date_trunc('second', p_after at time zone 'UTC');
  v_wall timestamp := bugle.wall_time(p_timezone, v_after);
  v_next timestamp;
  v_slot timestamp;
  v_first timestamp;
  v_change timestamp;
begin
  if p_after is null or not isfinite(p_after) then
    return null;
  end if;
  if p_cron.every_hour and bugle.utc_time(p_timezone, v_wall) > v_after then
    -- the clocks are about to go back over this time: first the slots until then, then those of the repeated hour
    v_change := bugle.clock_change(p_timezone, v_after, bugle.utc_time(p_timezone, v_wall));
    v_slot := v_after + (bugle.next_wall_time(p_cron, v_wall) - v_wall);
    if v_slot < v_change then
      return v_slot at time zone 'UTC';
    end if;
    v_wall := bugle.wall_time(p_timezone, v_change) - interval '1 second';
  end if;
  loop
    v_next := bugle.next_wall_time(p_cron, v_wall);
    if v_next is null then
      return null;
    end if;
    v_slot := bugle.utc_time(p_timezone, v_next);
    v_wall := bugle.wall_time(p_timezone, v_slot);
    if v_wall <> v_next then
      v_slot := bugle.clock_change(p_timezone, v_slot - (v_wall - v_next), v_slot);
      if not p_cron.every_hour and v_slot > v_after then
        return v_slot at time zone 'UTC';
      end if;
      v_wall := bugle.wall_time(p_timezone, v_slot) - interval '1 second';
      continue;
    end if;
    -- the same clock time by the offset of a day before: if it is real, it is the first of two
    v_first := v_next - (bugle.wall_time(p_timezone, v_slot - interval '1 day') - (v_slot - interval '1 day'));
    if v_first < v_slot and v_first > v_after and bugle.wall_time(p_timezone, v_first) = v_next then
      return v_first at time zone 'UTC';
    elsif v_slot > v_after and (
      p_cron.every_hour or v_first >= v_slot or bugle.wall_time(p_timezone, v_first) <> v_next)
    then
      return v_slot at time zone 'UTC';
    end if;
  end loop;
end
$$;
comment on function bugle.next_cron_slot is 'The next moment that fits a parsed cron expression, strictly later.';

-- Outside the calendar the arithmetic of times overflows, and without a time zone the search would never end.
create or replace function bugle.check_preview(p_timezone text, p_after timestamptz) returns void
language plpgsql immutable
as $$
begin
  perform bugle.check_timezone(p_timezone);
  -- infinity is valid: nothing comes after it
  if p_after is null
    or (p_after <> 'infinity' and p_after not between '0001-01-01 00:00:00+00' and '9999-01-01 00:00:00+00')
  then
    perform bugle.refuse_schedule('p_after', p_after::text, 'must be a time between the years 1 and 9999',
      'For example now().');
  end if;
end
$$;
comment on function bugle.check_preview is 'Reject a time zone or a moment after which no slot can be found.';

create or replace function bugle.next_slot(p_cron text, p_timezone text, p_after timestamptz) returns timestamptz
language plpgsql immutable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.check_preview(p_timezone, p_after);
  return bugle.next_cron_slot(bugle.parse_cron(p_cron), p_timezone, p_after);
end
$$;
comment on function bugle.next_slot is 'The next moment that fits a cron expression in a time zone, strictly later '
  'than p_after. Null if there is none in eight years.';

create or replace function bugle.schedule_preview(
  p_cron text, p_timezone text default 'UTC', p_count integer default 5, p_after timestamptz default now())
returns setof timestamptz
language plpgsql immutable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_cron constant bugle.cron := bugle.parse_cron(p_cron);
  v_slot timestamptz := p_after;
begin
  perform bugle.check_preview(p_timezone, p_after);
  for v_number in 1 .. least(p_count, 10000) loop
    v_slot := bugle.next_cron_slot(v_cron, p_timezone, v_slot);
    exit when v_slot is null;
    return next v_slot;
  end loop;
end
$$;
comment on function bugle.schedule_preview is 'The next times at which a cron expression fires in a time zone.';
