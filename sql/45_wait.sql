-- wait: running -> waiting -> completed, failed, ready. For an external answer, or for children. Called by workers;
-- answered by operators, and by applications that have the token.

create or replace function bugle.token_hash(p_token text) returns text
language sql immutable parallel safe
return encode(sha256(convert_to(p_token, 'UTF8')), 'hex');
comment on function bugle.token_hash is 'A token as it is stored.';

create or replace function bugle.begin_to_wait(
  p_job bugle.jobs_live, p_token text, p_answer_by timestamptz, p_result jsonb default null)
returns void
language plpgsql
as $$
begin
  perform bugle.record_attempt(p_job, 'waiting');
  update bugle.jobs_live j
  set state = 'waiting',
    -- a hash: a login that may read jobs must not be able to answer them
    answer_token = bugle.token_hash(p_token),
    answer_by = p_answer_by,
    answer = null,
    result = p_result,
    updated_at = now()
  where j.id = p_job.id;
end
$$;
comment on function bugle.begin_to_wait is 'Make a locked job wait for an answer.';

create or replace function bugle.wait(
  p_worker bigint, p_nonce uuid, p_job bugle.held_job, p_token text, p_for interval)
returns setof bugle.verdict
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_job constant bugle.jobs_live := bugle.lock_held(p_worker, p_nonce, p_job);
  -- least() alone would turn null into 10 years
  v_answer_by constant timestamptz := now() + case
    when p_for is not null then greatest(least(p_for, interval '10 years'), interval '0') end;
begin
  if v_job.id is null then
    return next (p_job.id, p_job.claim, bugle.verdict_on(p_worker, p_job))::bugle.verdict;
    return;
  end if;
  perform bugle.begin_to_wait(v_job, p_token, v_answer_by);
  perform bugle.expect(v_answer_by);
  perform bugle.release(array[v_job.id]);
end
$$;
comment on function bugle.wait is
  'Make a job this worker holds wait for an answer, at most this long; null: indefinitely.';

create or replace function bugle.lock_waiting(p_id bigint, p_token text, p_answer text, p_reason text) returns boolean
language plpgsql
as $$
declare
  v_job bugle.jobs;
begin
  select j.* into v_job from bugle.jobs_live j where j.id = p_id for update;
  if not found then
    select j.* into v_job from bugle.jobs j where j.id = p_id;
  end if;
  if v_job.id is null then
    perform bugle.refuse_unknown_job(p_id);
  end if;
  if v_job.state = p_answer and v_job.reason = p_reason
    and v_job.answer_token is not distinct from bugle.token_hash(p_token)
  then
    return false;
  end if;
  if v_job.state <> 'waiting' then
    perform bugle.refuse('JB031', format('job %s is %s, not waiting', p_id, v_job.state),
      'Only a job that waits for an answer can be answered.');
  end if;
  if v_job.outstanding is not null then
    perform bugle.refuse('JB031', format('job %s waits for %s other jobs, not for an answer', p_id, v_job.outstanding),
      format('See them with: select * from bugle.results_of(%s);', p_id));
  end if;
  if v_job.answer_token is not null and v_job.answer_token is distinct from bugle.token_hash(p_token) then
    perform bugle.refuse('JB032', format('the token is not the one job %s waits for', p_id),
      'The executor issued the token when the job began to wait.');
  end if;
  return true;
end
$$;
comment on function bugle.lock_waiting is
  'Lock a job that waits for an answer, or raise why it cannot be answered. False: the same answer was given before.';

create or replace function bugle.resolve(p_id bigint, p_result jsonb default null, p_token text default null)
returns void
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if not bugle.lock_waiting(p_id, p_token, 'completed', 'resolved') then
    return;
  end if;
  if bugle.resolve_step(p_id, p_result) then
    perform bugle.record_change('resolve', p_id, 'waiting', 'ready', null);
  else
    perform bugle.record_change('resolve', p_id, 'waiting', 'completed', null);
    perform bugle.end_jobs(array[bugle.ending(p_id, 'completed', 'resolved', p_result => p_result)]);
  end if;
end
$$;
comment on function bugle.resolve is
  'Answer a waiting job with its result: it is completed. A chain continues: the result is the output of its step.';

create or replace function bugle.reject(p_id bigint, p_error text, p_token text default null) returns void
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if bugle.lock_waiting(p_id, p_token, 'failed', 'rejected') then
    perform bugle.record_change('reject', p_id, 'waiting', 'failed', null);
    perform bugle.end_jobs(array[bugle.ending(p_id, 'failed', 'rejected', bugle.bounded(p_error), 'rejected')]);
  end if;
end
$$;
comment on function bugle.reject is 'Answer a waiting job with an error: it fails.';

-- The token stays: the same answer again changes nothing.
create or replace function bugle.resume_with(p_id bigint, p_answer jsonb, p_token text default null) returns void
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_limit constant integer := (select s.max_payload_bytes from bugle.settings s);
  v_queue text;
begin
  if octet_length(p_answer::text) > v_limit then
    perform bugle.refuse('JB003',
      format('the answer has %s bytes, the limit is %s', octet_length(p_answer::text), v_limit),
      'Store large data elsewhere and name it in the answer, or raise bugle.settings.max_payload_bytes.');
  end if;
  if exists (
    select
    from bugle.jobs_live j
    where j.id = p_id
      and j.state <> 'waiting'
      and j.answer is not null
      and j.answer_token is not distinct from bugle.token_hash(p_token))
  then
    return;
  end if;
  -- there is no state "resumed": this only locks the job, or raises an error
  perform bugle.lock_waiting(p_id, p_token, 'resumed', 'resumed');
  perform bugle.record_change('resume_with', p_id, 'waiting', 'ready', null);
  update bugle.jobs_live j
  set state = 'ready',
    answer = coalesce(p_answer, 'null'),
    answer_by = null,
    attempt = j.attempt - 1,
    updated_at = now()
  where j.id = p_id
  returning j.queue into v_queue;
  perform bugle.ring(v_queue);
end
$$;
comment on function bugle.resume_with is
  'Answer a waiting job: its executor is run again, as the same attempt, and finds the answer.';

-- For an application that has a token and no other rights on jobs: it cannot answer a job that waits without a token.
create or replace function bugle.answer(
  p_id bigint, p_token text, p_result jsonb default null, p_error text default null, p_resume boolean default false)
returns void
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_is_closed boolean;
begin
  -- locked before it is checked: it may be about to wait without a token
  select j.answer_token is null and j.state = 'waiting' and j.outstanding is null into v_is_closed
  from bugle.jobs_live j
  where j.id = p_id
  for update;
  if p_token is null or v_is_closed then
    perform bugle.refuse('JB032', format('job %s cannot be answered without a token', p_id),
      'Its executor can issue a token when it begins to wait; operators answer with bugle.resolve, bugle.reject '
      'or bugle.resume_with.');
  end if;
  if p_error is not null and (p_resume or p_result is not null) then
    perform bugle.refuse('JB001', 'an answer is a result or an error, not both', 'Give p_result, or p_error.');
  end if;
  if p_error is not null then
    perform bugle.reject(p_id, p_error, p_token);
  elsif p_resume then
    perform bugle.resume_with(p_id, p_result, p_token);
  else
    perform bugle.resolve(p_id, p_result, p_token);
  end if;
end
$$;
comment on function bugle.answer is
  'Answer a waiting job with its token: with a result, with an error, or so that its executor continues.';

-- spawn: running -> waiting -> ready. The children are stored and the job begins to wait in one transaction, fenced by
-- the claim: a worker that dies earlier leaves no children behind, and the same call again gets the verdict "repeated".
create or replace function bugle.spawn(p_worker bigint, p_nonce uuid, p_job bugle.held_job, p_children jsonb)
returns setof bugle.verdict
language plpgsql security definer set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_job constant bugle.jobs_live := bugle.lock_held(p_worker, p_nonce, p_job);
  v_children constant jsonb :=
    case when jsonb_typeof(p_children) = 'object' then p_children -> 'jobs' else p_children end;
begin
  if coalesce(jsonb_typeof(v_children), '') not in ('array', 'object') or v_children in ('[]', '{}')
    or (jsonb_typeof(p_children) = 'object' and p_children - 'jobs' <> '{}')
  then
    perform bugle.refuse('JB040', 'children must be an array of jobs, or a workflow, and not empty',
      'For example [{"command": "page", "payload": 1}, {"command": "page", "payload": 2}].');
  end if;
  if v_job.id is null then
    return next (p_job.id, p_job.claim, bugle.verdict_on(p_worker, p_job))::bugle.verdict;
    return;
  end if;
  perform bugle.insert_jobs(v_children, p_job.id);
end
$$;
comment on function bugle.spawn is
  'Enqueue children of a job this worker holds, which waits until all of them have ended; then it is run again, as '
  'the same attempt.';

create or replace function bugle.results_of(p_id bigint)
returns table (
  job bigint, name text, child boolean, state text, reason text, result jsonb, error text, ended_at timestamptz)
language sql stable security definer set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off set jit = off
as $$
  select d.needs, d.name, d.child, coalesce(d.state, j.state, 'gone'), d.reason, d.result, d.error, d.ended_at
  from bugle.dependencies d
    left join lateral (
      select l.state from bugle.jobs_live l where l.id = d.needs and d.state is null limit 1) j on true
  where d.job = p_id
  order by d.needs
$$;
comment on function bugle.results_of is
  'The dependencies and children of a job: the state of each, and its result or error.';

-- Stable, so that claim and children are read from one snapshot: a claim that is current then was made after the last
-- child had ended. A worker that was frozen must not see children that a later claim has spawned.
create or replace function bugle.dependency_results(p_worker bigint, p_nonce uuid, p_job bugle.held_job)
returns table (
  verdict text, job bigint, name text, child boolean, state text, reason text, result jsonb, error text)
language plpgsql stable security definer set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.check_worker(p_worker, p_nonce);
  if not exists (select from bugle.jobs_live j where bugle.is_held_by(j, p_worker, p_job.id, p_job.claim)) then
    verdict := bugle.verdict_on(p_worker, p_job);
    return next;
    return;
  end if;
  return query
  select null::text, r.job, r.name, r.child, r.state, r.reason, r.result, r.error from bugle.results_of(p_job.id) r;
end
$$;
comment on function bugle.dependency_results is
  'The results of the dependencies and children of a job this worker holds; or the verdict, if it no longer holds the '
  'job.';
