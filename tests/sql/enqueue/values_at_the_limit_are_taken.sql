begin;

insert into bugle.jobs (command) values (repeat('x', 200));
insert into bugle.jobs (command, queue) values ('noop', repeat('ü', 100));
insert into bugle.jobs (command, priority) values ('noop', 2147483647), ('noop', -2147483648);
insert into bugle.jobs (command, deadline) values ('noop', now() + interval '1 microsecond');
insert into bugle.jobs (command, timeout) values ('noop', '1 microsecond'), ('noop', '10 years');
insert into bugle.jobs (command, max_attempts) values ('noop', 1), ('noop', 2147483647);
insert into bugle.jobs (command, headers) values ('noop', jsonb_build_object('h', repeat('x', 65536 - 9)));
insert into bugle.jobs (command, payload) values ('noop', to_jsonb(repeat('x', 1048576 - 2)));

select test.equal(count(*), 11::bigint, 'all are stored') from bugle.jobs_live;

rollback;
