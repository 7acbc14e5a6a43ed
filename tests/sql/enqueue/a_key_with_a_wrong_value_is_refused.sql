begin;

select test.refused(s.sql, 'JB001', s.message)
from (values
  ($$insert into bugle.jobs (command, unique_key) values ('noop', '')$$,
    'column "unique_key" must have 1 to 300 characters, not 0: '''''),
  ($$insert into bugle.jobs (command, unique_key) values ('noop', repeat('x', 301))$$,
    'column "unique_key"%, not 301: %'),
  ($$select bugle.enqueue('noop', p_unique_key => repeat('x', 100000))$$, 'column "unique_key"%'),
  ($$insert into bugle.jobs (command, idempotency_key) values ('noop', '')$$, 'column "idempotency_key"%, not 0: '''''),
  ($$insert into bugle.jobs (command, idempotency_key) values ('noop', repeat('x', 301))$$,
    'column "idempotency_key"%, not 301: %'),
  ($$select bugle.enqueue('noop', p_idempotency_key => repeat('x', 100000))$$, 'column "idempotency_key"%'),
  ($$select bugle.enqueue(repeat('x', 100000), p_idempotency_key => 'm1')$$, 'column "command"%'),
  ($$insert into bugle.jobs (command, idempotency_ttl) values ('noop', '1 hour')$$,
    'column "idempotency_ttl"%come with an idempotency_key%'),
  ($$select bugle.enqueue('noop', p_idempotency_key => 'm1', p_idempotency_ttl => '-1 hour')$$,
    'column "idempotency_ttl" must be positive%'),
  ($$select bugle.enqueue('noop', p_idempotency_key => 'm1', p_idempotency_ttl => '11 years')$$,
    'column "idempotency_ttl"%at most 10 years%')) s (sql, message);

select test.equal(count(*), 0::bigint, 'nothing is left of them') from bugle.idempotency_keys;
insert into bugle.jobs (command, unique_key, idempotency_key)
  values (repeat('ü', 200), repeat('ü', 300), repeat('ü', 300));

rollback;
