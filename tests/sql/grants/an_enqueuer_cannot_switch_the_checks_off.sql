begin;

set local role bugle_enqueuer;
set local bugle.skip_checks = 'on';

select test.refused($$insert into bugle.jobs (command, max_attempts) values ('', -1)$$, 'JB001');

rollback;
