begin;

insert into bugle.idempotency_keys (command, key, job, expires_at)
values ('noop', 'old', 1, now() - interval '1 second'), ('noop', 'young', 2, now() + interval '1 second');

select test.equal(bugle.upkeep(), 'pruned', 'upkeep');

select test.equal(array_agg(k.key), '{young}', 'what is left') from bugle.idempotency_keys k;

rollback;
