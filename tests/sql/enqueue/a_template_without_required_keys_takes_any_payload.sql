begin;

insert into bugle.commands (name, queue) values ('templated', 'mail');
insert into bugle.jobs (command, payload) values ('templated', '[1, 2]'), ('templated', '3'), ('templated', 'null');

select test.equal(string_agg(j.payload::text, ' ' order by j.id), '[1, 2] 3 null', 'as they were given')
from bugle.jobs_live j
where j.queue = 'mail';

rollback;
