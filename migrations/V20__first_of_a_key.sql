-- Claims hop from key to key by these indexes. A hop reads the rest of its page, and Postgres compares each entry on it: as text,
-- in the order of the database's language, that was most of what a hop cost. Hashes compare as numbers; which key comes after which
-- does not matter. Those by name are dropped with the functions that use them (99_grants.sql).
--
-- Whether a job is the first of its order key is told by one look where mostly two were needed: what runs comes first, then what may
-- be in the way (retrying, paused, waiting, put off), then what is ready. If the first is ready, nothing is in its way.
alter index bugle.jobs_live_ordered rename to jobs_live_ordered_by_name;
create index jobs_live_ordered on bugle.jobs_live (
  hashtextextended(queue, 0), hashtextextended(order_key, 0), (case state when 'running' then 0 when 'ready' then 2 else 1 end), id)
  where order_key is not null and (state not in ('scheduled', 'waiting') or first_started_at is not null);

alter index bugle.jobs_live_limited rename to jobs_live_limited_by_name;
create index jobs_live_limited on bugle.jobs_live (
  hashtextextended(queue, 0), hashtextextended(command, 0), hashtextextended(limit_key, 0), priority, id)
  where state = 'ready' and limit_key is not null;

-- of each fair key first those that nothing else can hold up
alter index bugle.jobs_live_fair rename to jobs_live_fair_by_name;
create index jobs_live_fair on bugle.jobs_live (
  hashtextextended(queue, 0), hashtextextended(command, 0), hashtextextended(fair_key, 0),
  (order_key is not null or limit_key is not null), priority, id)
  where state = 'ready' and fair_key is not null;

-- Likewise: what started lately of a key is found by a hash of both names.
alter table bugle.starts
  drop constraint starts_pkey,
  add column key_hash bigint not null generated always as (hashtextextended(key, hashtextextended(queue, 0))) stored,
  add primary key (key_hash, started_at);
