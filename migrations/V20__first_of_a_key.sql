-- Whether a job is the first of its order key is told by one look where mostly two were needed: what runs comes first, then what may
-- be in the way (retrying, paused, waiting, put off), then what is ready. If the first is ready, nothing is in its way.
drop index bugle.jobs_live_ordered;

create index jobs_live_ordered on bugle.jobs_live (
  queue, order_key, (case state when 'running' then 0 when 'ready' then 2 else 1 end), id)
  where order_key is not null and (state not in ('scheduled', 'waiting') or first_started_at is not null);
