-- Ids come from the sequence alone: an identity column, GENERATED ALWAYS. An INSERT that gives an id is refused by Postgres
-- itself (428C9), at no cost for the others, and tools that read the schema recognise the key.
--
-- Here and not in migrations/, because it must be committed with the functions that say OVERRIDING SYSTEM VALUE: those of the
-- revisions before give ids without it. Last, because it locks all partitions until this transaction ends.
-- From PostgreSQL 17 on the partitions inherit it; before, it is a property of bugle.jobs alone.
do $$
declare
  v_old pg_catalog.pg_sequences;
begin
  if not exists (
    select
    from pg_attribute a
    where a.attrelid = 'bugle.jobs'::regclass
      and a.attname = 'id'
      and a.attidentity = 'a')
  then
    alter table bugle.jobs alter column id drop default;
    -- A session that draws an id at this moment, in a function it has planned already, takes it from the old sequence. So it
    -- is renamed, dropped only after the commit (src/schema.rs), and the new one leaves it room.
    alter sequence bugle.job_ids rename to job_ids_before;
    select s.* into v_old from pg_sequences s where s.schemaname = 'bugle' and s.sequencename = 'job_ids_before';
    execute format('alter table bugle.jobs alter column id add generated always as identity '
        '(sequence name bugle.job_ids increment by %s start with %s cache %s)',
      v_old.increment_by, v_old.start_value, v_old.cache_size);
    if v_old.last_value is not null then
      perform setval('bugle.job_ids', v_old.last_value + 100000 * v_old.increment_by);
    end if;
  end if;
end
$$;
comment on sequence bugle.job_ids is 'The ids of bugle.jobs.';

do $$
begin
  if exists (select from pg_roles r where r.rolname = 'bugle_enqueuer') then
    -- for currval and lastval, by which some drivers learn the id
    grant select on sequence bugle.job_ids to bugle_enqueuer;
  end if;
end
$$;
