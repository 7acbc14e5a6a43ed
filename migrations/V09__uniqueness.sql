-- One job instead of two: keys that a job may have, and what a command sets for jobs that leave it out.

alter table bugle.jobs
  add column unique_key text,
  add column idempotency_key text,
  add column idempotency_ttl interval;

-- Only live jobs have it. Two jobs of one key can lie in history side by side.
create unique index jobs_live_unique_key on bugle.jobs_live (command, unique_key) where unique_key is not null;

-- Outlives the job it names. No foreign key: bugle.jobs is partitioned by state, and a job may be dropped before its key.
create table bugle.idempotency_keys (
  command text not null,
  key text not null,
  job bigint not null,
  expires_at timestamptz not null,
  primary key (command, key)
);

create index idempotency_keys_expires_at on bugle.idempotency_keys (expires_at);

alter table bugle.commands
  add column queue text,
  add column priority integer,
  add column delay interval,
  add column unique_payload boolean not null default false,
  add column unique_mode text,
  add column required_keys text[],
  -- whether there is anything to do when a job comes in; the rest is looked up when it is claimed, or when it fails
  add column is_template boolean not null generated always as (
    queue is not null or priority is not null or delay is not null or unique_payload or required_keys is not null) stored,
  add constraint queue_is_short check (length(queue) between 1 and 100 and btrim(queue, e' \t\n\r') <> ''),
  add constraint delay_is_not_negative check (delay between '0' and '10 years'),
  add constraint unique_mode_is_known check (unique_mode in ('keep', 'replace', 'move')),
  add constraint required_keys_are_named check (cardinality(required_keys) > 0 and array_position(required_keys, null) is null);

create index commands_templates on bugle.commands (name) where is_template;

-- Called once there has been a template.
create sequence bugle.templates;
