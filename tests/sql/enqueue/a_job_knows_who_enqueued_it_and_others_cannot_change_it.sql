begin;

create role test_shop in role bugle_enqueuer;
create role test_mailer in role bugle_enqueuer;

create function pg_temp.who(p_command text) returns text
language sql
as $$
  select string_agg(concat_ws('@', j.enqueued_by, j.enqueued_from), ' ' order by j.id)
  from bugle.jobs j
  where j.command = p_command
$$;

set local session authorization test_shop;
set local application_name = 'checkout';
insert into bugle.jobs (command) values ('stored');
select bugle.enqueue('stored', p_run_at => now() + interval '1 hour');
select bugle.enqueue_workflow('{"jobs": {"one": {"command": "flow"}, "two": {"command": "flow", "after": ["one"]}}}');
select bugle.enqueue('rebuild', '1', p_unique_key => 'k');
select test.refused($sql$insert into bugle.jobs (command, enqueued_by) values ('stored', 'x')$sql$, '42501');

set local session authorization test_mailer;
select test.refused($sql$select bugle.enqueue('rebuild', '2', p_unique_key => 'k', p_on_conflict => 'replace')$sql$,
  'JB007', 'job % with the unique_key ''k'' was enqueued by ''test_shop'': ''test_mailer'' cannot replace it');
select test.refused($sql$select bugle.enqueue('rebuild', '2', p_unique_key => 'k', p_on_conflict => 'move')$sql$,
  'JB007');
select bugle.enqueue('rebuild', '2', p_unique_key => 'k', p_on_conflict => 'keep');

set local session authorization test_shop;
select bugle.enqueue('rebuild', '3', p_unique_key => 'k', p_on_conflict => 'replace');
reset session authorization;
select test.equal(pg_temp.who('stored'), 'test_shop@checkout test_shop@checkout', 'stored');
select test.equal(pg_temp.who('flow'), 'test_shop@checkout test_shop@checkout', 'a workflow');
select test.equal((select payload::text from bugle.jobs where command = 'rebuild'), '3', 'the same login may');
select test.equal((select concat_ws('@', t.who, t.application) from bugle.jobs j, bugle.timeline(j.id) t
  where j.command = 'rebuild' and t.event = 'enqueued'), 'test_shop@checkout', 'the timeline');

update bugle.settings set shared_unique_keys = true;
set local session authorization test_mailer;
select bugle.enqueue('rebuild', '4', p_unique_key => 'k', p_on_conflict => 'replace');
reset session authorization;
select test.equal((select payload::text from bugle.jobs where command = 'rebuild'), '4', 'by the setting');

set local application_name = 'backfill';
select bugle.add_missing('missing', '[{"key": "a", "enqueued_by": "somebody"}]');
select test.equal(pg_temp.who('missing'), session_user || '@backfill', 'what is added');

rollback;
