-- spawn: running -> waiting -> ready. An executor makes children for its job, and goes on with their results. Called by workers.
--
-- The children are stored and the job begins to wait in one transaction, fenced by the claim: a worker that dies before leaves
-- no children behind, and the same call again is answered with "repeated".

create or replace function bugle.spawn(p_worker bigint, p_nonce uuid, p_job bugle.held_job, p_children jsonb)
returns setof bugle.verdict
language plpgsql
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
declare
  v_children constant jsonb := case when jsonb_typeof(p_children) = 'object' then p_children -> 'jobs' else p_children end;
  v_held bigint[];
begin
  perform bugle.check_worker(p_worker, p_nonce);
  if jsonb_typeof(v_children) is null or jsonb_typeof(v_children) not in ('array', 'object') or v_children in ('[]', '{}')
    or (jsonb_typeof(p_children) = 'object' and p_children - 'jobs' <> '{}')
  then
    perform bugle.refuse('JB040', 'children must be an array of jobs, or a workflow, and not empty',
      'For example [{"command": "page", "payload": 1}, {"command": "page", "payload": 2}].');
  end if;
  v_held := bugle.lock_held(p_worker, array[p_job]);
  if v_held <> '{}' then
    perform bugle.insert_jobs(v_children, p_job.id);
  end if;
  return query
  select v.* from bugle.verdicts_for_rest(p_worker, array[p_job], v_held) v;
end
$$;
comment on function bugle.spawn is 'Enqueue children of a job this worker holds and leave it waiting until all of them have ended; then it is run again, as the same attempt.';

create or replace function bugle.results_of(p_id bigint)
returns table (
  job bigint, name text, child boolean, state text, reason text, result jsonb, error text, ended_at timestamptz)
language sql stable
security definer
set search_path = pg_catalog, bugle, pg_temp
set enable_seqscan = off
set jit = off
as $$
  select d.needs, d.name, d.child, coalesce(d.state, j.state, 'gone'), d.reason, d.result, d.error, d.ended_at
  from bugle.dependencies d
    left join lateral (
      select l.state from bugle.jobs_live l where l.id = d.needs and d.state is null limit 1) j on true
  where d.job = p_id
  order by d.needs
$$;
comment on function bugle.results_of is 'What a job waits or waited for, its dependencies and its children: the state of each, and its result or error.';

-- The same, asked by the executor. Stable, so that both looks are at one moment: a claim that is current there was made after
-- the last child had ended. One that was frozen meanwhile must not see the children another claim has spawned since.
create or replace function bugle.dependency_results(p_worker bigint, p_nonce uuid, p_job bugle.held_job)
returns table (
  verdict text, job bigint, name text, child boolean, state text, reason text, result jsonb, error text)
language plpgsql stable
security definer
set search_path = pg_catalog, bugle, pg_temp
as $$
begin
  perform bugle.check_worker(p_worker, p_nonce);
  if exists (
    select
    from bugle.jobs_live j
    where j.id = p_job.id
      and j.claim = p_job.claim
      and j.worker = p_worker
      and j.state = 'running')
  then
    return query
    select null::text, r.job, r.name, r.child, r.state, r.reason, r.result, r.error from bugle.results_of(p_job.id) r;
  else
    return query
    select v.verdict, null::bigint, null::text, null::boolean, null::text, null::text, null::jsonb, null::text
    from bugle.verdicts_for_rest(p_worker, array[p_job], '{}') v;
  end if;
end
$$;
comment on function bugle.dependency_results is 'What a job this worker holds needed, and what its children did; or the verdict, if it holds the job no more.';
