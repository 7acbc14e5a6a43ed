-- rows: rows that the engine needs. Inserted here rather than by migrations, because a dump without data restores only
-- the tables (src/schema.rs). Existing rows are not changed.

insert into bugle.settings default values on conflict do nothing;
insert into bugle.keeping default values on conflict do nothing;

select bugle.set_verb('install', '');
insert into bugle.retry_policies
select p.* from bugle.builtin_policies() p where not exists (select from bugle.retry_policies);
select bugle.set_verb('', '');

-- the days whose tables were restored from a dump
insert into bugle.history_days (kind, day, leaf)
select case i.inhparent when 'bugle.jobs_ended'::regclass then 'ended' else 'failed' end, d.day::date, c.relname
from pg_inherits i
  join pg_class c on c.oid = i.inhrelid
  cross join lateral substring(pg_get_expr(c.relpartbound, c.oid) from '[0-9]{4}-[0-9]{2}-[0-9]{2}') d (day)
where i.inhparent in ('bugle.jobs_ended'::regclass, 'bugle.jobs_failed'::regclass)
  and d.day is not null
  and not exists (select from bugle.history_days);
