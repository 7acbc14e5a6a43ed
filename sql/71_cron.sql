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
  v_text text;
  v_part text[];
  v_from integer;
  v_to integer;
  v_values integer[] := '{}';
begin
  foreach v_text in array string_to_array(p_text, ',') loop
    v_part := regexp_match(v_text, '^(?:[*]|([0-9A-Za-z]+)(?:-([0-9A-Za-z]+))?)(?:/([0-9]+))?$');
    if v_part is null then
      perform bugle.refuse_cron(p_field, p_text,
        'write *, a value, a range a-b, a step */n or a-b/n, or a list of these');
    elsif v_part[3]::numeric not between 1 and 9999 then
      perform bugle.refuse_cron(p_field, v_text, 'a step is at least 1 and at most 9999');
    end if;
    v_from := case
      when v_part[1] is null then p_least
      else bugle.cron_value(v_part[1], p_field, p_least, p_most, p_names) end;
    v_to := case
      when v_part[2] is not null then bugle.cron_value(v_part[2], p_field, p_least, p_most, p_names)
      when v_part[1] is null or v_part[3] is not null then p_most
      else v_from end;
    if v_from > v_to then
      perform bugle.refuse_cron(p_field, v_text,
        format('a range must ascend, but %s is greater than %s', v_from, v_to));
    end if;
    v_values := v_values || array(select generate_series(v_from, v_to, coalesce(v_part[3]::integer, 1)));
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

create or replace function bugle.cron_has_day(p_cron bugle.cron, p_day timestamp) returns boolean
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

create or replace function bugle.next_value(p_values integer[], p_after integer, p_else integer) returns integer
language plpgsql immutable
as $$
begin
  return coalesce((select min(v.value) from unnest(p_values) v (value) where v.value > p_after), p_else);
end
$$;
comment on function bugle.next_value is 'The least of these values that is greater than p_after; if none is, p_else.';

-- From the largest unit to the smallest: a time that does not fit in one of them is moved on to where that unit fits
-- next, or to the next larger unit, and everything below begins again. The next February 29 is at most eight years
-- away.
create or replace function bugle.next_wall_time(p_cron bugle.cron, p_after timestamp) returns timestamp
language plpgsql immutable
as $$
declare
  v_last constant timestamp := date_trunc('day', p_after) + interval '8 years 2 days';
  v_time timestamp := p_after + interval '1 second';
  v_hour integer;
  v_minute integer;
  v_second integer;
begin
  while v_time < v_last loop
    v_hour := extract(hour from v_time);
    v_minute := extract(minute from v_time);
    v_second := extract(second from v_time);
    if extract(month from v_time)::integer <> all (p_cron.months) then
      v_time := date_trunc('month', v_time) + interval '1 month';
    elsif not bugle.cron_has_day(p_cron, v_time) then
      v_time := date_trunc('day', v_time) + interval '1 day';
    elsif v_hour <> all (p_cron.hours) then
      v_time := date_trunc('day', v_time) + make_interval(hours => bugle.next_value(p_cron.hours, v_hour, 24));
    elsif v_minute <> all (p_cron.minutes) then
      v_time := date_trunc('hour', v_time) + make_interval(mins => bugle.next_value(p_cron.minutes, v_minute, 60));
    elsif v_second <> all (p_cron.seconds) then
      v_time := date_trunc('minute', v_time) + make_interval(secs => bugle.next_value(p_cron.seconds, v_second, 60));
    else
      return v_time;
    end if;
  end loop;
  return null;
end
$$;
comment on function bugle.next_wall_time is
  'The next wall-clock time that fits a cron expression, strictly later, whether or not it exists in a time zone.';

create or replace function bugle.wall_time(p_timezone text, p_utc timestamp) returns timestamp
language sql immutable
return p_utc at time zone 'UTC' at time zone p_timezone;
comment on function bugle.wall_time is 'What the clocks of a time zone show at a moment, given in UTC.';

-- By bisection, between two moments with different offsets.
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

-- Goes from one change of the clocks to the next, at most a day at a time. If the clocks go back, a schedule with all
-- 24 hours begins again with what they show then; any other waits until they show later times than before.
create or replace function bugle.next_cron_slot(p_cron bugle.cron, p_timezone text, p_after timestamptz)
returns timestamptz
language plpgsql immutable
as $$
declare
  v_at timestamp := date_trunc('second', p_after at time zone 'UTC');
  v_wall timestamp := bugle.wall_time(p_timezone, v_at); -- the latest that the clocks have shown
  v_offset interval;
  v_next timestamp;
  v_slot timestamp;
  v_until timestamp;
begin
  if p_after is null or not isfinite(p_after) then
    return null;
  end if;
  v_until := v_at - interval '1 day';
  v_offset := bugle.wall_time(p_timezone, v_until) - v_until;
  if not p_cron.every_hour and v_at + v_offset > v_wall then
    v_wall := greatest(v_wall, bugle.clock_change(p_timezone, v_until, v_at) + v_offset - interval '1 second');
  end if;
  loop
    v_offset := bugle.wall_time(p_timezone, v_at) - v_at;
    v_next := bugle.next_wall_time(p_cron, v_wall);
    exit when v_next is null;
    v_slot := v_next - v_offset;
    v_until := least(v_slot, v_at + interval '1 day');
    if bugle.wall_time(p_timezone, v_until) - v_until = v_offset then
      exit when v_until = v_slot;
      v_at := v_slot - interval '1 day';
      continue;
    end if;
    v_at := bugle.clock_change(p_timezone, v_at, v_until);
    if p_cron.every_hour then
      v_wall := bugle.wall_time(p_timezone, v_at) - interval '1 second';
    elsif bugle.wall_time(p_timezone, v_at) > v_next then
      v_slot := v_at; -- the clocks do not show v_next
      exit;
    end if;
  end loop;
  return case when v_next is not null then v_slot at time zone 'UTC' end;
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
