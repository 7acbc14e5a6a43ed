-- register: a worker registers with what it serves. Called by workers, once; then attach after each lost connection.
--
-- A worker is a row and a session advisory lock, its proof of life: the lock is released when the process dies, without
-- any timeout. Each connection takes a new lock, because a half-open connection keeps the lock of a backend whose
-- worker has long reconnected.

create or replace function bugle.is_active(p_worker bugle.registrations) returns boolean
language sql immutable parallel safe
return p_worker.stopped_at is null and p_worker.lost_at is null;
comment on function bugle.is_active is 'Whether a worker has neither signed off nor been lost.';

create or replace function bugle.check_worker(p_worker bigint, p_nonce uuid) returns void
language plpgsql stable
as $$
begin
  if not exists (
    select from bugle.registrations r where r.id = p_worker and r.nonce = p_nonce)
  then
    perform bugle.refuse('JB010', format('there is no worker %s with this nonce', p_worker),
      'Register again with bugle.register.');
  end if;
end
$$;
comment on function bugle.check_worker is 'Reject a caller that is not the worker it claims to be.';

create or replace function bugle.check_registered(p_worker bigint, p_nonce uuid) returns void
language plpgsql
as $$
begin
  perform bugle.check_worker(p_worker, p_nonce);
  if exists (select from bugle.registrations r where r.id = p_worker and r.stopped_at is not null) then
    perform bugle.refuse('JB010', format('worker %s has signed off', p_worker), 'Register again with bugle.register.');
  end if;
end
$$;
comment on function bugle.check_registered is
  'Reject a caller that is not the worker it claims to be, or has signed off.';

create or replace function bugle.refuse_claim(p_worker bigint, p_nonce uuid) returns void
language plpgsql
as $$
begin
  perform bugle.check_registered(p_worker, p_nonce);
  if exists (select from bugle.registrations r where r.id = p_worker and r.lost_at is not null) then
    perform bugle.refuse('JB011', format('worker %s was given up as lost', p_worker),
      'Call bugle.attach with the running jobs before the next claim.');
  end if;
  perform bugle.refuse('JB011', format('worker %s is attached from another session than this one', p_worker),
    'Claim on the connection that called bugle.attach. '
    'A pooler in transaction mode changes connections: connect workers directly.');
end
$$;
comment on function bugle.refuse_claim is 'Raise the error that says why a session may not claim.';

create or replace function bugle.prove_life(p_worker bigint) returns void
language plpgsql
as $$
declare
  v_key constant bigint := bugle.new_life_key();
begin
  perform pg_advisory_lock(v_key);
  update bugle.registrations r
  set life_key = v_key,
    backend_pid = pg_backend_pid(),
    seen_at = clock_timestamp(),
    lost_at = null
  where r.id = p_worker;
end
$$;
comment on function bugle.prove_life is 'Take a fresh proof of life for a worker on this session.';

create or replace function bugle.register(
  p_name text, p_host text, p_process_id integer, p_version text, p_protocol integer,
  p_queues text[], p_slots integer[], p_commands text[])
returns table (worker bigint, nonce uuid)
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_worker bigint;
  v_nonce uuid;
begin
  if p_protocol <> bugle.protocol() then
    perform bugle.refuse('JB013',
      format('this worker speaks protocol %s, the schema speaks %s', p_protocol, bugle.protocol()),
      case when p_protocol > bugle.protocol()
        then 'Run "bugle migrate" of the worker''s version.'
        else 'Upgrade the worker to the version that migrated this database.' end);
  end if;
  -- no commands: they are announced later, with bugle.serve
  if coalesce(cardinality(p_queues), 0) = 0 or p_commands is null then
    perform bugle.refuse('JB014', 'a worker must serve at least one queue',
      'Name its queues, with their slots, and the commands it has executors for.');
  end if;
  if cardinality(p_slots) is distinct from cardinality(p_queues) or array_position(p_queues, null) is not null
    or array_position(p_commands, null) is not null or coalesce(1 > any (p_slots), true)
  then
    perform bugle.refuse('JB014',
      format('queues %s and slots %s do not match: each queue needs a number of slots, at least 1', p_queues, p_slots),
      'Pass two arrays of the same length.');
  end if;
  insert into bugle.registrations (
    name, host, process_id, version, protocol, queues, slots, commands, life_key, backend_pid)
  values (
    left(p_name, 200), left(p_host, 200), p_process_id, left(p_version, 50), p_protocol, p_queues, p_slots, p_commands,
    0, pg_backend_pid())
  returning registrations.id, registrations.nonce into v_worker, v_nonce;
  perform bugle.prove_life(v_worker);
  return query
  select v_worker, v_nonce;
end
$$;
comment on function bugle.register is 'Register a worker on this session. Every later call needs the nonce.';

-- The commands of a worker change when its hosts announce others. It scans its queues afterwards: that it was idle
-- until now says nothing about jobs of a new command.
create or replace function bugle.serve(p_worker bigint, p_nonce uuid, p_commands text[], p_hosts jsonb default '[]')
returns void
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.check_worker(p_worker, p_nonce);
  if p_commands is null or array_position(p_commands, null) is not null
    or jsonb_typeof(p_hosts) is distinct from 'array'
  then
    perform bugle.refuse('JB014', format('commands %s or hosts %s are invalid', p_commands, p_hosts),
      'Pass the commands as an array without null, and the hosts as a JSON array.');
  end if;
  update bugle.registrations r
  set commands = p_commands,
    hosts = p_hosts
  where r.id = p_worker
    and (r.commands <> p_commands or r.hosts <> p_hosts);
end
$$;
comment on function bugle.serve is
  'Announce the commands that a worker serves from now on, and the state of its hosts.';

-- After a lost connection, before the next claim: the worker lists the jobs it is still running.
--   Jobs it still holds: it keeps them.
--   Claims that were lost in a crash of the server (the job is ready, under the previous claim number) are restored.
--   All others are returned as fenced: the worker has to stop them.
--   Jobs it holds and does not list were claimed in a reply that never arrived: they are given back, without counting
--   the attempt.
create or replace function bugle.attach(p_worker bigint, p_nonce uuid, p_running bugle.held_job[])
returns setof bugle.verdict
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_unknown bigint[];
begin
  perform bugle.check_registered(p_worker, p_nonce);
  perform bugle.prove_life(p_worker);

  -- lock everything that is changed below in one pass and in the order of ids: two passes could deadlock
  perform
  from (
    select h.id
    from unnest(p_running) h
    union
    select j.id
    from bugle.jobs_live j
    where j.worker = p_worker
      and bugle.is_running(j)
    order by 1) i
    cross join lateral (
      select
      from bugle.jobs_live j
      where j.id = i.id
      limit 1
      for update) locked;

  update bugle.jobs_live j
  set state = 'running',
    attempt = j.attempt + 1,
    claim = h.claim,
    worker = p_worker,
    first_started_at = coalesce(j.first_started_at, now()),
    started_at = now(),
    updated_at = now()
  from unnest(p_running) h
  where j.id = h.id
    -- seed: attach_takes_what_it_never_had
    and j.claim = h.claim - 1
    and j.state = 'ready';

  v_unknown := array(
    select j.id
    from bugle.jobs_live j
    where j.worker = p_worker
      and bugle.is_running(j)
      and not exists (
        select from unnest(p_running) h where h.id = j.id and h.claim = j.claim)
    order by j.id
    for update);
  update bugle.jobs_live j
  set state = 'ready',
    attempt = j.attempt - 1,
    updated_at = now()
  where j.id = any (v_unknown);
  perform bugle.ring(q.queue)
  from (
    select distinct j.queue from bugle.jobs_live j where j.id = any (v_unknown)) q;

  return query
  select v.* from bugle.not_held(p_worker, p_running) v;
end
$$;
comment on function bugle.attach is
  'Reconnect a worker on a new session, with the jobs it is still running. Returns the jobs it lost.';

-- A subquery with a limit, so that the table is never scanned. The tempting form is "not exists": with statistics from
-- a moment when the table was empty it compared every running job with every row, for seconds, which delayed the
-- completions on the same connection.
create or replace function bugle.not_held(p_worker bigint, p_running bugle.held_job[]) returns setof bugle.verdict
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
begin
  return query
  select h.id, h.claim, 'fenced'
  from unnest(p_running) h
  where (
    select true
    from bugle.jobs_live j
    where bugle.is_held_by(j, p_worker, h.id, h.claim)
    limit 1) is null;
end
$$;
comment on function bugle.not_held(bigint, bugle.held_job[]) is
  'Which of these jobs a worker no longer holds.';

-- Called by a worker that was notified of a cancelled job: any login can send a notification, so the worker checks.
create or replace function bugle.not_held(p_worker bigint, p_nonce uuid, p_running bugle.held_job[])
returns setof bugle.verdict
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.check_worker(p_worker, p_nonce);
  return query
  select v.* from bugle.not_held(p_worker, p_running) v;
end
$$;
comment on function bugle.not_held(bigint, uuid, bugle.held_job[]) is
  'Which of these jobs this worker no longer holds.';

-- The opposite: jobs that no worker runs, because the claim was committed after the worker had reconnected, or because
-- the completion was rejected before bugle.attach restored the claim. The worker gives them back once it knows that no
-- reply to one of its claims is still on its way.
create or replace function bugle.unnamed(p_worker bigint, p_nonce uuid, p_running bugle.held_job[])
returns setof bugle.held_job
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off set jit = off
as $$
begin
  perform bugle.check_worker(p_worker, p_nonce);
  return query
  select j.id, j.claim
  from bugle.jobs_live j
  where j.worker = p_worker
    and bugle.is_running(j)
  except
  select h.id, h.claim from unnest(p_running) h;
end
$$;
comment on function bugle.unnamed is 'The jobs that a worker holds and does not list as running.';

create or replace function bugle.detach(p_worker bigint, p_nonce uuid) returns void
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.check_worker(p_worker, p_nonce);
  update bugle.registrations r
  set stopped_at = coalesce(r.stopped_at, now()),
    running = 0
  where r.id = p_worker;
  perform bugle.pass_on(q.queue)
  from (
    select unnest(r.queues) as queue from bugle.registrations r where r.id = p_worker) q;
end
$$;
comment on function bugle.detach is 'Stop a worker. Jobs that it still holds are rescued.';
