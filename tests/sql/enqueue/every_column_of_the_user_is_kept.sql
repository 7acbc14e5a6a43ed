begin;

-- A value for each column that a job may set, by its type; a new column needs a line only if that is not valid.
create function pg_temp.sample(p_column text) returns jsonb
language sql
as $$
  select coalesce(
    ('{"retry_policy": "fixed", "idempotency_ttl": "01:00:00", "max_attempts": 3}'::jsonb
      || jsonb_build_object('run_at', now() - interval '1 hour', 'steps', array['noop'])) -> p_column,
    case format_type(a.atttypid, a.atttypmod)
      when 'text' then to_jsonb('the ' || a.attname)
      when 'integer' then to_jsonb(-7)
      when 'interval' then to_jsonb(interval '5 minutes')
      when 'timestamp with time zone' then to_jsonb(now() + interval '1 day')
      when 'jsonb' then jsonb_build_object(a.attname, 1)
    end)
  from pg_attribute a
  where a.attrelid = 'bugle.jobs'::regclass
    and a.attname = p_column
$$;

do $$
declare
  v_columns constant text[] := bugle.settable_columns();
  -- keys may not be used twice
  v_keys constant text[] := '{unique_key,idempotency_key}';
  v_samples constant jsonb := (select jsonb_object_agg(c.name, pg_temp.sample(c.name)) from unnest(v_columns) c (name));
  v_values text[];
  v_worker bigint;
  v_held bugle.held_job;
  v_id bigint;
begin
  perform test.equal(array(select s.key from jsonb_each(v_samples) s where s.value = 'null'), '{}', 'without a sample');

  for v_way in 1 .. 4 loop
    v_values := array(
      select case
          when c.name = any (v_keys) then quote_literal(concat(v_way, c.name))
          when c.name = 'steps' then quote_literal('{noop}')
          when jsonb_typeof(v_samples -> c.name) = 'object' then quote_literal(v_samples -> c.name)
          else quote_literal(v_samples ->> c.name) end
      from unnest(v_columns) with ordinality c (name, place)
      order by c.place);
    if v_way = 1 then
      execute format('insert into bugle.jobs (%s) values (%s) returning id', array_to_string(v_columns, ', '),
        array_to_string(v_values, ', ')) into v_id;
    elsif v_way = 2 then
      execute format('select bugle.enqueue(%s)', (
        select string_agg(format('p_%s => %s', c.name, c.value), ', ')
        from unnest(v_columns, v_values) c (name, value))) into v_id;
    elsif v_way = 3 then
      v_id := bugle.enqueue_job(v_samples || '{"unique_key": "3", "idempotency_key": "3"}');
    else
      perform bugle.add_missing(v_samples ->> 'command', jsonb_build_array(v_samples - 'command' || '{"key": "4"}'));
      select max(j.id) into v_id from bugle.jobs_live j;
    end if;
    perform test.equal(jsonb_strip_nulls(to_jsonb(test.job(v_id))) - v_keys
      - '{id,state,attempt,crashes,claim,awaited,enqueued_by,enqueued_from,created_at,updated_at}'::text[],
      v_samples - v_keys,
      format('stored in way %s', v_way));
  end loop;

  v_worker := test.register(p_queues => array[v_samples ->> 'queue']);
  select c.id, c.claim into v_held from test.claim(v_worker, 1, v_samples ->> 'queue') c;
  perform test.fail(v_worker, v_held, p_retryable => false);
  perform test.equal((test.job(v_held.id)).state, 'failed', 'in history');
  perform test.equal(to_jsonb(test.job(v_held.id)) @> (v_samples - v_keys), true, 'kept in history');
  perform bugle.restart(v_held.id);
  perform test.equal(to_jsonb(test.job(v_held.id)) @> (v_samples - v_keys - '{run_at,deadline}'::text[]), true,
    'kept by a restart');
end
$$;

rollback;
