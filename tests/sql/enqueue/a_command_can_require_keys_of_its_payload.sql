begin;

insert into bugle.commands (name, required_keys) values ('strict', '{to,subject}');

insert into bugle.jobs (command, payload) values ('strict', '{"to": "a", "subject": null, "more": 1}');
select test.refused(s.sql, 'JB001', s.message)
from (values
  ($$insert into bugle.jobs (command, payload) values ('strict', '{"to": "a"}')$$,
    'column "payload" lacks keys that the command ''strict'' requires: ''subject'''),
  ($$insert into bugle.jobs (command) values ('strict')$$, 'column "payload" lacks %: ''to'', ''subject'''),
  ($$insert into bugle.jobs (command, payload) values ('strict', '["to", "subject"]')$$,
    'column "payload" must be a JSON object for the command ''strict'', not array'),
  ($$select bugle.enqueue('strict', '1')$$, 'column "payload" must be a JSON object%, not number')) s (sql, message);

select test.refused(format('insert into bugle.commands (name, required_keys) values (''wrong'', %L)', c.given), 'JB001',
  '%"required_keys" must be a list%')
from unnest(array['{}', '{a,NULL}']) c (given);

rollback;
