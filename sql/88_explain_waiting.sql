-- explain, families: which jobs a waiting job waits for.

create or replace function bugle.explain_waiting(p_job bugle.jobs)
returns table (reason text, words text, cure text, facts jsonb)
language sql stable
as $$
  select
    case when w.open_children > 0 then 'children' else 'dependencies' end,
    case
      when w.open_children > 0 then format('It waits for %s children, of which %s have ended; the first of the others is job %s (%s), which is %s.',
        w.children, w.children - w.open_children, w.id, bugle.quoted(w.command), w.state)
      when p_job.outstanding = 1 then format('It waits for job %s (%s), which is %s.', w.id, bugle.quoted(w.command), w.state)
      else format('It waits for %s jobs; the first is job %s (%s), which is %s.', p_job.outstanding, w.id, bugle.quoted(w.command), w.state)
    end,
    format('It goes on when they have ended: select * from bugle.explain(%s); set_state overrules.', w.id),
    jsonb_build_object('state', p_job.state, 'outstanding', p_job.outstanding, 'children', w.children, 'jobs', w.jobs)
  from (
    select d.id, d.command, d.state, d.jobs, f.children, f.open_children
    from (
      select count(*) as children, count(*) filter (where c.state is null) as open_children
      from bugle.dependencies c
      where c.job = p_job.id
        and c.child) f
      cross join (
      select min(o.id) over () as first, o.*, jsonb_agg(o.id) over () as jobs
      from (
        select j.id, j.command, j.state
        from bugle.dependencies n
          cross join lateral (
            select l.id, l.command, l.state from bugle.jobs_live l where l.id = n.needs limit 1) j
        where n.job = p_job.id
          and n.state is null
        order by n.needs
        limit 20) o) d
    where d.id = d.first) w
$$;
comment on function bugle.explain_waiting is 'Which jobs a waiting job waits for, and their state.';
