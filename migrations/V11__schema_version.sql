-- The schema's version: what this database was last migrated to.

create table bugle.schema_version (
  only_row boolean primary key default true,
  revision integer not null,
  checksum text not null,
  migrated_at timestamptz not null default now(),
  constraint there_is_one_row check (only_row)
);

comment on table bugle.schema_version is 'What this database was last migrated to: one row.';
comment on column bugle.schema_version.only_row is 'Always true: there is one row.';
comment on column bugle.schema_version.revision is 'Rises with every release that changes the schema.';
comment on column bugle.schema_version.checksum is 'Of sql/ as it was applied.';
comment on column bugle.schema_version.migrated_at is 'When it was migrated.';
comment on table bugle.migrations is 'The migrations that were applied. Written by bugle migrate.';
