begin;

insert into bugle.commands (name, queue, required_keys) values ('templated', 'mail', '{a}');
set local role bugle_enqueuer;

insert into bugle.jobs (command, unique_key, idempotency_key, idempotency_ttl) values ('noop', 'k', 'm1', '1 hour');
select test.equal((o).created, false, 'the unique one') from bugle.enqueue_once('noop', p_unique_key => 'k') o;
select test.equal((o).created, false, 'the message') from bugle.enqueue_once('noop', p_idempotency_key => 'm1') o;
select test.equal(bugle.add_missing('noop', '[{"key": "k"}, {"key": "l"}]'), 1::bigint, 'added');
select test.refused($$insert into bugle.jobs (command, unique_key) values ('noop', 'k')$$, '23505');
select test.refused($$insert into bugle.jobs (command, idempotency_key) values ('noop', 'm1')$$, '23505');
select test.refused($$insert into bugle.jobs (command) values ('templated')$$, 'JB001', '%requires: ''a''');
set local bugle.skip_checks = 'on';
select test.refused($$select bugle.enqueue('', p_max_attempts => -1)$$, 'JB001');
select test.refused(s, '42501')
from unnest(array['select * from bugle.idempotency_keys', 'select unique_key from bugle.jobs',
  'select * from bugle.commands',
  'insert into bugle.commands (name) values (''mine'')', 'delete from bugle.idempotency_keys',
  'select bugle.take_idempotency_key(''noop'', ''m2'', 1, null)',
    'select bugle.on_duplicate(''noop'', ''k'', null, null, null, null)']) s;

rollback;
