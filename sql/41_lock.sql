-- lock: many jobs at once, so that nobody waits for each other. Used by operators, by expiry, and by who waits for jobs that are there.
--
-- Whatever ends jobs locks those first, in the order of ids, and then the jobs that wait for them, in the order of ids
-- (42_follow.sql). Whoever locks both kinds otherwise must do it in this order too. But which kind a job is may change while one waits
-- for another's lock; so jobs that wait for others are only tried, all or none, while nothing but the first kind is held.

create or replace function bugle.lock_jobs(p_ids bigint[]) returns void
language plpgsql
set enable_seqscan = off
set jit = off
as $$
begin
  perform l.id
  from (
    select j.id from bugle.jobs_live j where j.id = any (p_ids) and j.outstanding is null order by j.id for update) l;
  for v_try in 1 .. 200 loop
    begin
      perform l.id
      from (
        select j.id from bugle.jobs_live j where j.id = any (p_ids) order by j.id for update nowait) l;
      return;
    exception when lock_not_available then
      perform pg_sleep(0.001 + 0.004 * random());
    end;
  end loop;
  -- somebody holds one of them for long: there is nothing left but to wait
  perform l.id
  from (
    select j.id from bugle.jobs_live j where j.id = any (p_ids) order by j.id for update) l;
end
$$;
comment on function bugle.lock_jobs is 'Lock live jobs, those that wait for others all at once.';

create or replace function bugle.lock_family(p_ids bigint[]) returns void
language plpgsql
set enable_seqscan = off
set jit = off
as $$
declare
  v_ends constant bigint[] := p_ids || bugle.failing_dependants(p_ids);
begin
  perform bugle.lock_jobs(array(
    select i.id from unnest(v_ends) i (id)
    union
    select x.job
    from unnest(v_ends) i (id)
      cross join lateral (select d.job from bugle.dependencies d where d.needs = i.id and d.state is null offset 0) x
    union
    select x.needs
    from unnest(p_ids) i (id)
      cross join lateral (select d.needs from bugle.dependencies d where d.job = i.id offset 0) x));
end
$$;
comment on function bugle.lock_family is 'Lock live jobs, those that wait for them, and those they wait for: whatever may happen to them next.';
