-- once: unique and idempotent jobs. Called by bugle.enqueue; the trigger covers plain INSERTs.
--
-- There are two kinds of keys. For both, an INSERT that repeats a key is rejected (23505), bugle.enqueue returns the id
-- of the existing job, and bugle.enqueue_once also returns whether it is new.
--   unique_key:      at most one live job for each command and key. A unique index on jobs_live, nothing else.
--   idempotency_key: one job for each command and key until the key expires, even if that job has long ended. A row of
--                    bugle.idempotency_keys, written with the job, in its transaction.
-- A key of a transaction that is still open is waited for: after its end either the job exists, or it never did.

create or replace function bugle.idempotency_ends(p_command text, p_ttl interval) returns timestamptz
language plpgsql stable
as $$
begin
  return now() + least(greatest(coalesce(p_ttl,
    (select c.idempotency_ttl from bugle.commands c where c.name = p_command),
    (select s.default_idempotency_ttl from bugle.settings s)), interval '0'), interval '11 years');
end
$$;
comment on function bugle.idempotency_ends is 'When an idempotency key of a command expires if it is used now.';

-- A payload that must stay unique for a time after its job has ended: when it ends is not known when the key is taken,
-- so it is looked up once the key would expire. Completions cost nothing more for it.
create or replace function bugle.unique_until(p_key bugle.idempotency_keys) returns timestamptz
language plpgsql stable
as $$
declare
  v_for constant interval := (select c.unique_for from bugle.commands c where c.name = p_key.command);
begin
  if v_for is null then
    return null;
  end if;
  return (
    select coalesce(j.finished_at + v_for, 'infinity')
    from bugle.job(p_key.job) j
    where j.unique_key = p_key.key);
end
$$;
comment on function bugle.unique_until is
  'Until when a key keeps a payload unique that must be unique_for a time after its job has ended. Null for other '
  'keys, and if the job is gone.';

create or replace function bugle.is_free(p_key bugle.idempotency_keys) returns boolean
language plpgsql stable
as $$
begin
  return p_key.expires_at <= now() and coalesce(bugle.unique_until(p_key), now()) <= now();
end
$$;
comment on function bugle.is_free is 'Whether an idempotency key has expired, so that another job can take it.';

create or replace function bugle.take_idempotency_key(p_command text, p_key text, p_job bigint, p_ttl interval)
returns boolean
language plpgsql
as $$
begin
  insert into bugle.idempotency_keys as k (command, key, job, expires_at)
  values (p_command, p_key, p_job, bugle.idempotency_ends(p_command, p_ttl))
  on conflict (command, key) do update
  set job = excluded.job,
    expires_at = excluded.expires_at
  -- seed: idempotency_key_is_taken_twice
  where bugle.is_free(k);
  return found;
end
$$;
comment on function bugle.take_idempotency_key is 'Take an idempotency key for a job. False if another job has it.';

create or replace function bugle.idempotency_key_holder(p_command text, p_key text) returns bigint
language plpgsql stable
as $$
begin
  return (select k.job from bugle.idempotency_keys k where k.command = p_command and k.key = p_key);
end
$$;
comment on function bugle.idempotency_key_holder is 'The job that has an idempotency key. Null if there is none.';

-- An AFTER trigger: a row that ON CONFLICT DO NOTHING leaves out must not take a key.
create or replace function bugle.remember_idempotency_key() returns trigger
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  -- A job that is moved back to the live table took its key when it was new. Only the engine can set created_at; a
  -- setting would not be safe, because this runs with the owner's rights and any session could set it.
  if new.created_at <> now()
    -- bugle.enqueue_once and bugle.add_missing take the key first
    or bugle.idempotency_key_holder(new.command, new.idempotency_key) = new.id
    or bugle.take_idempotency_key(new.command, new.idempotency_key, new.id, new.idempotency_ttl)
  then
    return null;
  end if;
  raise exception using errcode = '23505',
    message = format('job %s has the command %s and the idempotency_key %s already',
      bugle.idempotency_key_holder(new.command, new.idempotency_key), bugle.quoted(new.command),
      bugle.quoted(new.idempotency_key)),
    hint = 'bugle.enqueue and bugle.enqueue_once return that job instead; '
      'a workflow is enqueued as a whole or not at all.',
    schema = 'bugle', table = 'idempotency_keys', constraint = 'idempotency_keys_pkey';
end
$$;
comment on function bugle.remember_idempotency_key is
  'Trigger: store the idempotency key of a new job, or reject the job if the key is taken.';

select bugle.keep_trigger('bugle.jobs_live', 'remember_idempotency_key', $$
  after insert on bugle.jobs_live for each row
  when (new.idempotency_key is not null)
  execute function bugle.remember_idempotency_key()$$);

create or replace function bugle.on_duplicate(
  p_command text, p_unique_key text, p_payload jsonb, p_run_at timestamptz, p_deadline timestamptz, p_on_conflict text)
returns bigint
language plpgsql
as $$
declare
  v_template bugle.commands;
  v_key text;
  v_mode text;
  v_run_at timestamptz;
  v_job bugle.jobs;
begin
  select c.* into v_template from bugle.commands c where c.name = p_command;
  v_key := coalesce(p_unique_key, case when v_template.unique_payload then md5(p_payload::text) end);
  v_mode := coalesce(p_on_conflict, v_template.unique_mode, 'keep');
  if v_mode = 'keep' then
    return (select j.id from bugle.jobs_live j where j.command = p_command and j.unique_key = v_key);
  end if;

  select j.* into v_job from bugle.jobs_live j where j.command = p_command and j.unique_key = v_key for update;
  if v_job.state = 'running' or (v_job.state = 'waiting' and v_job.attempt > 0) then
    return v_job.id; -- it has been started: its payload and time stay
  elsif v_job.enqueued_by <> session_user and not (select s.shared_unique_keys from bugle.settings s) then
    perform bugle.refuse('JB007', format('job %s with the unique_key %s was enqueued by %s: %s cannot %s it', v_job.id,
        bugle.quoted(v_key), bugle.quoted(v_job.enqueued_by), bugle.quoted(session_user), v_mode),
      'Only that login may do this, unless bugle.settings.shared_unique_keys is true.');
  end if;
  if v_mode = 'replace' then
    update bugle.jobs_live j
    set payload = p_payload,
      updated_at = now()
    where j.id = v_job.id;
    return v_job.id;
  end if;

  v_run_at := coalesce(p_run_at, now() + coalesce(v_template.delay, interval '0'));
  if coalesce(p_deadline, v_job.deadline) <= v_run_at then
    perform bugle.refuse('JB001', format('job %s cannot be moved to %s: its deadline is %s',
        v_job.id, v_run_at, coalesce(p_deadline, v_job.deadline)),
      'Give a later p_deadline, or an earlier p_run_at.');
  end if;
  update bugle.jobs_live j
  set run_at = v_run_at,
    deadline = coalesce(p_deadline, j.deadline),
    state = case
      when j.state in ('paused', 'waiting') then j.state
      when v_run_at <= now() then 'ready'
      when j.state = 'ready' then 'scheduled'
      else j.state end,
    paused_from = case when j.paused_from = 'ready' and v_run_at > now() then 'scheduled' else j.paused_from end,
    updated_at = now()
  where j.id = v_job.id
  returning j.* into v_job;
  if v_job.state = 'ready' then
    perform bugle.ring(v_job.queue);
  elsif v_job.state in ('scheduled', 'retrying') then
    perform bugle.expect(v_run_at);
  end if;
  return v_job.id;
end
$$;
comment on function bugle.on_duplicate is 'The live job that has this unique key: as it is, with a new payload, or '
  'at a new time. Null if it has ended meanwhile.';

-- For backfills. Keys are taken in their order, so that two calls with the same keys wait and do not deadlock.
create or replace function bugle.add_missing(p_command text, p_jobs jsonb) returns bigint
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_bad text;
  v_taken text[];
  v_added bigint[];
begin
  if p_command is null then
    perform bugle.refuse('JB001', 'p_command must not be null',
      'Name the command of the jobs, for example ''send_mail''.');
  end if;
  if jsonb_typeof(p_jobs) is distinct from 'array' then
    perform bugle.refuse('JB001', format('p_jobs must be a JSON array, not %s', coalesce(jsonb_typeof(p_jobs), 'null')),
      'For example [{"key": "order-1", "payload": {"order": 1}}].');
  end if;
  select j.value::text into v_bad
  from jsonb_array_elements(p_jobs) j
  where bugle.is_key(j.value ->> 'key') is not true
  limit 1;
  if found then
    perform bugle.refuse('JB001',
      format('each of p_jobs must have a "key" of 1 to 300 characters: %s', bugle.quoted(v_bad)),
      'The key identifies a job, so that calling this again does not add it twice.');
  end if;
  perform set_config('bugle.skip_checks', '', true);

  with wanted as (
    select distinct on (s.key) s.key, s.job
    from (
      select e.spec ->> 'key' as key, e.place, jsonb_populate_record(null::bugle.jobs_live,
        e.spec || jsonb_build_object('id', nextval('bugle.job_ids'), 'state', 'ready', 'command', p_command,
          'unique_key', e.spec ->> 'key', 'idempotency_key', e.spec ->> 'key', 'enqueued_by', session_user,
          'enqueued_from', current_setting('application_name', true))) as job
      from jsonb_array_elements(p_jobs) with ordinality e (spec, place)) s
    where not exists (
      select from bugle.jobs_live l where l.command = p_command and l.unique_key = s.key)
    order by s.key, s.place
  ), taken as (
    insert into bugle.idempotency_keys as k (command, key, job, expires_at)
    select p_command, w.key, (w.job).id, bugle.idempotency_ends(p_command, (w.job).idempotency_ttl)
    from wanted w
    order by w.key
    on conflict (command, key) do update
    set job = excluded.job,
      expires_at = excluded.expires_at
    where bugle.is_free(k)
    returning k.key, k.job
  ), added as (
    insert into bugle.jobs_live as n overriding system value
    select (w.job).*
    from wanted w
      join taken t on t.job = (w.job).id
    order by w.key
    on conflict do nothing
    returning n.id
  )
  select array(select t.key from taken t), array(select a.id from added a) into v_taken, v_added;

  -- another session was faster with the same unique_key: give back the keys of jobs that were not inserted
  if cardinality(v_taken) > cardinality(v_added) then
    delete from bugle.idempotency_keys k
    where k.command = p_command
      and k.key = any (v_taken)
      and k.job <> all (v_added);
  end if;
  insert into bugle.changes (verb, job, to_state, who)
  select 'add_missing', l.id, l.state, bugle.acting_login()
  from bugle.jobs_live l
  where l.id = any (v_added);
  return cardinality(v_added);
end
$$;
comment on function bugle.add_missing is 'Enqueue those of these jobs that do not exist yet: no live job of the '
  'command has the key, and none had it in the last 24 hours. Returns how many.';
