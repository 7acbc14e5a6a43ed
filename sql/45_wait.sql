-- wait: running -> waiting -> completed, failed. The executor ends without a result; somebody outside gives it later.

create or replace function bugle.token_hash(p_token text) returns text
language sql immutable parallel safe
return encode(sha256(convert_to(p_token, 'UTF8')), 'hex');
comment on function bugle.token_hash is 'A token as it is kept.';
revoke execute on function bugle.token_hash from public;

create or replace function bugle.wait(
  p_worker bigint, p_nonce uuid, p_job bugle.held_job, p_token text, p_for interval)
returns setof bugle.verdict
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_held bigint[];
  -- least() alone would take null for 10 years
  v_answer_by constant timestamptz := now() + case when p_for is not null then least(p_for, interval '10 years') end;
begin
  perform bugle.check_worker(p_worker, p_nonce);
  v_held := bugle.lock_held(p_worker, array[p_job]);
  update bugle.jobs_live j
  set state = 'waiting',
    -- kept as a hash: whoever may read jobs may not answer them by that
    answer_token = bugle.token_hash(p_token),
    answer_by = v_answer_by,
    updated_at = now()
  where j.id = any (v_held);
  perform bugle.expect(v_answer_by);
  return query
  select v.* from bugle.verdicts_on_others(p_worker, array[p_job], v_held) v;
end
$$;
comment on function bugle.wait is 'Leave a job this worker holds waiting for an answer, at most for a while; null waits without end.';
revoke execute on function bugle.wait from public;

-- Lock a job that waits for an answer, or say why it cannot be answered. False: the same answer was given before.
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
    perform bugle.refuse('JB030', format('there is no job %s', p_id), 'It may have been removed, or dropped with its day of history.');
  end if;
  if v_job.state = p_answer and v_job.reason = p_reason and v_job.answer_token is not distinct from bugle.token_hash(p_token) then
    return false;
  end if;
  if v_job.state <> 'waiting' then
    perform bugle.refuse('JB031', format('job %s is %s, not waiting', p_id, v_job.state),
      'Only a job whose executor waits for an answer can be answered.');
  end if;
  if v_job.answer_token is not null and v_job.answer_token is distinct from bugle.token_hash(p_token) then
    perform bugle.refuse('JB032', format('the token is not the one job %s waits for', p_id),
      'The executor handed the token out when it began to wait.');
  end if;
  return true;
end
$$;
comment on function bugle.lock_waiting is 'Lock a waiting job for its answer, or say why it takes none.';
revoke execute on function bugle.lock_waiting from public;

create or replace function bugle.resolve(p_id bigint, p_result jsonb default null, p_token text default null) returns void
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if bugle.lock_waiting(p_id, p_token, 'completed', 'resolved') then
    perform bugle.end_jobs(array[(p_id, 'completed', 'resolved', p_result, null, null)::bugle.ending]);
  end if;
end
$$;
comment on function bugle.resolve is 'Answer a waiting job with its result: it is completed.';
revoke execute on function bugle.resolve from public;

create or replace function bugle.reject(p_id bigint, p_error text, p_token text default null) returns void
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  if bugle.lock_waiting(p_id, p_token, 'failed', 'rejected') then
    perform bugle.end_jobs(array[(p_id, 'failed', 'rejected', null, bugle.bounded(p_error), 'rejected')::bugle.ending]);
  end if;
end
$$;
comment on function bugle.reject is 'Answer a waiting job with an error: it has failed.';
revoke execute on function bugle.reject from public;
