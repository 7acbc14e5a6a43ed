begin;

insert into bugle.retry_policies (name, kind, retries) values ('mine', 'fixed', 3);

select test.equal((test.job(bugle.enqueue('noop', p_retry_policy => 'mine'))).retry_policy, 'mine', 'the policy');

rollback;
