begin;

set local role bugle_enqueuer;
insert into bugle.jobs (command, idempotency_key) values ('noop', 'm1');
set local bugle.skip_checks = 'on';

select test.refused($$insert into bugle.jobs (command, idempotency_key) values ('noop', 'm1')$$, '23505');
select test.refused($$select bugle.enqueue_workflow('{"jobs": {"a": {"command": "noop", "idempotency_key": "m1"}}}')$$,
  '23505');
select test.refused($$select bugle.enqueue_workflow('{"jobs": {
  "a": {"command": "noop", "idempotency_key": "m2"}, "b": {"command": "noop", "idempotency_key": "m2"}}}')$$, '23505');
insert into bugle.jobs (command, idempotency_key) values ('noop', 'm3');
reset bugle.skip_checks;
select test.refused($$insert into bugle.jobs (command, idempotency_key) values ('noop', 'm3')$$, '23505');
select test.equal((o).created, false, 'the setting skips no key')
  from bugle.enqueue_once('noop', p_idempotency_key => 'm3') o;
select test.refused($$insert into bugle.jobs (command, idempotency_key, created_at)
  values ('noop', 'm3', '2000-01-01')$$, '42501');

reset role;
select test.equal((select count(*) from bugle.jobs), 2::bigint, 'one of each key');

rollback;
