begin;

update bugle.settings set max_payload_bytes = 10000;

select test.refused($$insert into bugle.jobs (command, payload) values ('noop', to_jsonb(repeat('x', 10001)))$$,
  'JB003', 'column "payload" has 10003 bytes, the limit is 10000');
insert into bugle.jobs (command, payload) values ('noop', to_jsonb(repeat('x', 9998)));

select test.refused($$update bugle.settings set max_payload_bytes = 10$$, 'JB001',
  '%"max_payload_bytes" must be between 8192 and 134217728, not ''10''');

rollback;
