begin;

do $$
declare
  v_worker constant bigint := test.register('{noop,other}');
begin
  perform bugle.enqueue('noop'), bugle.enqueue('noop', p_max_attempts => 3);
  perform test.equal(array(select c.max_attempts from test.claim(v_worker, 2) c), '{16,3}', 'the default policy');

  insert into bugle.retry_policies (name, kind, retries, delay) values ('few', 'fixed', 1, '0'),
    ('many', 'fixed', 8, '0');
  insert into bugle.retry_policies (name, kind, retries, delay) values ('ever', 'endless', null, '1 minute');
  insert into bugle.commands (name, retry_policy) values ('noop', 'few');
  perform bugle.enqueue('noop'), bugle.enqueue('noop', p_retry_policy => 'many'), bugle.enqueue('other');
  perform test.equal(array(select c.max_attempts from test.claim(v_worker, 3) c), '{2,9,16}',
    'the policy of the command, unless the job names one');

  update bugle.commands set max_attempts = 5 where name = 'noop';
  perform bugle.enqueue('noop'), bugle.enqueue('noop', p_retry_policy => 'ever'),
    bugle.enqueue('other', p_retry_policy => 'ever');
  perform test.equal(array(select c.max_attempts from test.claim(v_worker, 3) c), '{5,5,2147483647}',
    'the number of the command comes before the policy');

  insert into bugle.jobs (command, steps) values ('chain', '{noop,other}');
  insert into bugle.jobs (command, steps, max_attempts) values ('chain', '{noop,other}', 4);
  perform test.equal(array(select c.max_attempts from test.claim(v_worker, 2) c), '{null,4}',
    'a chain that is retried as a whole, and one that is not');

  perform test.equal(
    array(select bugle.max_attempts_of(j) from bugle.jobs j where j.steps is null order by j.id),
    '{5,3,5,5,16,5,5,2147483647}'::integer[], 'as the failure of an attempt finds it');
end
$$;

rollback;
