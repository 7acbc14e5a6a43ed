begin;

set local statement_timeout = '60s';
select test.equal(bugle.next_slot(c, 'Europe/Berlin', '2026-01-01Z'), null, c)
from unnest(array['0 0 30 2 *', '0 0 31 4,6,9,11 *', '* * * 31 2 *']) c;
select test.equal(count(*), 0::bigint, 'preview') from bugle.schedule_preview('0 0 30 2 *');
select test.equal(bugle.next_slot('* * * * *', 'UTC', 'infinity'), null, 'after infinity');

rollback;
