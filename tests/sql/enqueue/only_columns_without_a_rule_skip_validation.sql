begin;

-- bugle.before_insert lets a plain job pass by a list of columns that are null. A column that is missing there would
-- never be checked.
do $$
declare
  v_body constant text := (select p.prosrc from pg_proc p where p.oid = 'bugle.before_insert'::regproc);
begin
  perform test.equal(array_agg(a.attname::text), null, 'columns that bugle.before_insert does not look at')
  from pg_attribute a
  where a.attrelid = 'bugle.jobs'::regclass
    and a.attnum > 0
    and not a.attisdropped
    -- assigned by Postgres itself, checked by a constraint of the partition, and only described
    and a.attname not in ('id', 'paused_from', 'enqueued_from')
    and v_body !~ format('\mnew\.%s\M', a.attname);
end
$$;

rollback;
