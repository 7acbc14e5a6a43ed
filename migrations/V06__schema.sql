-- What this database was last migrated to.

create table bugle.schema_version (
  only_row boolean primary key default true,
  -- rises with every release that changes sql/ or migrations/
  revision integer not null,
  -- of sql/ as it was applied
  checksum text not null,
  migrated_at timestamptz not null default now(),
  constraint there_is_one_row check (only_row)
);
