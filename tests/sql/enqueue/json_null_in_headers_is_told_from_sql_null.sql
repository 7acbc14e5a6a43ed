begin;

insert into bugle.jobs (command, headers) values ('noop', null);
select test.refused('insert into bugle.jobs (command, headers) values (''noop'', ''null'')', 'JB001',
  'column "headers" must be a JSON object or SQL NULL, not the JSON value null');
select test.refused('insert into bugle.jobs (command, headers) values (''noop'', ''[]'')', 'JB001',
  'column "headers" must be a JSON object, not array');

rollback;
