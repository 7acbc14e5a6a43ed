begin;

insert into bugle.commands (name, required_keys) values ('templated', '{a}');
set local role bugle_operator;
insert into bugle.schedules (name, cron, command) values ('s', '0 0 1 1 *', 'templated');

set local bugle.skip_checks = 'on';
select test.refused($$select bugle.run_schedule_now('s')$$, 'JB001', '%requires: ''a''');
select test.refused($$select bugle.add_missing('templated', '[{"key": "k"}]')$$, 'JB001', '%requires: ''a''');

rollback;
