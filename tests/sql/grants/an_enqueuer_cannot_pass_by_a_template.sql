begin;

insert into bugle.commands (name, queue, required_keys) values ('templated', 'mail', '{a}');
set local role bugle_enqueuer;
-- what a transaction remembers, forged: only the ring for the caller's own job may depend on it
set local bugle.skip_checks = 'on';
set local bugle.templated = 'no';
set local bugle.bell = 'default';
set local bugle.bells = '................';

select test.refused($$insert into bugle.jobs (command) values ('templated')$$, 'JB001', '%requires: ''a''');
select test.refused($$select bugle.enqueue('templated')$$, 'JB001', '%requires: ''a''');
insert into bugle.jobs (command, payload) values ('templated', '{"a": 1}');

reset role;
select test.equal(j.queue, 'mail', 'the queue of the template') from bugle.jobs j where j.command = 'templated';

rollback;
