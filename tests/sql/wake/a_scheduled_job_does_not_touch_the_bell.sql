begin;

insert into bugle.jobs (command, queue, run_at) values ('noop', 'silent', now() + interval '1 day');

select test.equal(bugle.holds(bugle.bell_key('silent')), false, 'the bell is not asked for');

rollback;
