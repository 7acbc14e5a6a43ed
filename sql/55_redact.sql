-- redact: what is never shown of payloads and of everything made from them.
--
-- bugle.settings.redacted_paths names values by path. The pages, the API and the command line read documents through
-- bugle.redacted; errors are cleaned before they are stored, because they are read in many ways, and by the thousand.
-- A login that may select bugle.jobs.payload still can: see bugle_observer.

-- A path matches a key, or with * any; ** matches any number of keys. Arrays have no keys of their own.
create or replace function bugle.paths_below(p_paths text[], p_key text) returns text[]
language sql immutable
as $$
  select array(
    select distinct case when p.path like '**.%' and n.place = 1 then p.path else n.rest end
    from unnest(p_paths) p (path)
      cross join lateral (
        select 1, ''
        where p.path like '**.%'
        union all
        select 2, substring(t.path from '^[^.]*[.]?(.*)$')
        from (select regexp_replace(p.path, '^([*][*][.])+', '')) t (path)
        where split_part(t.path, '.', 1) in ('*', p_key)) n (place, rest))
$$;
comment on function bugle.paths_below is
  'Paths of redacted values as they go on below a key; an empty one means the value itself.';

-- A document may be nested as deeply as Postgres can store: what is deeper than this is not shown at all.
create or replace function bugle.redact(p_value jsonb, p_paths text[], p_depth integer default 0) returns jsonb
language plpgsql immutable
as $$
begin
  if cardinality(p_paths) = 0 or p_value is null or jsonb_typeof(p_value) not in ('object', 'array') then
    return p_value;
  elsif '' = any (p_paths) or p_depth > 60 then
    return '"[redacted]"';
  elsif jsonb_typeof(p_value) = 'array' then
    return (
      select coalesce(jsonb_agg(bugle.redact(e.value, p_paths, p_depth + 1) order by e.place), '[]')
      from jsonb_array_elements(p_value) with ordinality e (value, place));
  end if;
  return (
    select coalesce(jsonb_object_agg(e.key, case
        when '' = any (e.below) then '"[redacted]"'
        else bugle.redact(e.value, e.below, p_depth + 1)
      end), '{}')
    from (select o.key, o.value, bugle.paths_below(p_paths, o.key) as below from jsonb_each(p_value) o) e);
end
$$;
comment on function bugle.redact is 'A document without the values at these paths.';

create or replace function bugle.redacted(p_document jsonb) returns jsonb
language sql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
  select bugle.redact(p_document, s.redacted_paths) from bugle.settings s
$$;
comment on function bugle.redacted is
  'A document as it is shown: without the values that bugle.settings.redacted_paths names.';

-- For searches: who may ask whether a value is this or that one learns it.
create or replace function bugle.is_redacted(p_path text[]) returns boolean
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_paths text[] := (select s.redacted_paths from bugle.settings s);
  v_key text;
begin
  foreach v_key in array coalesce(p_path, '{}') loop
    -- an element of an array
    continue when v_key ~ '^-?[0-9]+$' and cardinality(bugle.paths_below(v_paths, v_key)) = 0;
    v_paths := bugle.paths_below(v_paths, v_key);
    if '' = any (v_paths) then
      return true;
    end if;
  end loop;
  return false;
end
$$;
comment on function bugle.is_redacted is 'Whether the value at a path of payloads is redacted.';

-- Short values are left: replacing every 1 would make errors unreadable, and hide nothing.
create or replace function bugle.without_redacted(p_text text, p_payload jsonb) returns text
language plpgsql stable
as $$
declare
  v_paths constant text[] := (select s.redacted_paths from bugle.settings s);
  v_text text := p_text;
  v_secret text;
begin
  if cardinality(v_paths) = 0 or p_text is null then
    return p_text;
  end if;
  for v_secret in
    select s.value
    from bugle.scalars(p_payload) s (value)
    where length(s.value) >= 4
      and s.value not in (select h.value from bugle.scalars(bugle.redact(p_payload, v_paths)) h (value))
    group by s.value
    order by length(s.value) desc
    limit 1000
  loop
    v_text := replace(v_text, v_secret, '[redacted]');
  end loop;
  return v_text;
end
$$;
comment on function bugle.without_redacted is
  'A text without the redacted values of a payload that have four characters or more.';

create or replace function bugle.scalars(p_document jsonb) returns setof text
language sql immutable
as $$
  select v #>> '{}'
  from jsonb_path_query(p_document, 'strict $.**') v
  where jsonb_typeof(v) in ('string', 'number')
$$;
comment on function bugle.scalars is 'All texts and numbers of a document.';
