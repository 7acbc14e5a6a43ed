begin;

-- not even by the owner
select test.refused('insert into bugle.jobs (id, command) values (1000000, ''noop'')', '428C9');
select test.refused('insert into bugle.jobs (id, command) select 1000000, ''noop''', '428C9');
select test.refused('insert into bugle.jobs (id, command) values (null, ''noop'')', '428C9');

-- a tool that names every column sends DEFAULT for those it leaves to the database
insert into bugle.jobs (id, command, state, created_at) values (default, 'noop', default, default);
select test.equal(array_agg(j.id), array[currval('bugle.job_ids')], 'the next of the sequence') from bugle.jobs j;

rollback;
