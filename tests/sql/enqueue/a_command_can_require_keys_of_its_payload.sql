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

select test.refused(format('insert into bugle.commands (name, %s) values (''wrong'', %L)', c.name, c.value), '23514',
  '%' || c.rule || '%')
from (values
  ('queue', '', 'queue_is_short'), ('queue', '  ', 'queue_is_short'), ('delay', '-1 second', 'delay_is_not_negative'),
  ('unique_mode', 'merge', 'unique_mode_is_known'), ('required_keys', '{}', 'required_keys_are_named'),
  ('required_keys', '{a,NULL}', 'required_keys_are_named')) c (name, value, rule);

rollback;
