begin;

-- In Berlin the clocks went from 02:00 to 03:00 on 30 March 2025, at 01:00 UTC.
select test.equal(
  array(select p.slot from bugle.schedule_preview(e.cron, 'Europe/Berlin', cardinality(e.slots::timestamptz[]),
    '2025-03-29 12:00Z') p (slot)),
  e.slots::timestamptz[], e.cron)
from (values
  ('30 2 * * *', '{2025-03-30 01:00Z,2025-03-31 00:30Z}'),
  ('0 2,3 * * *', '{2025-03-30 01:00Z,2025-03-31 00:00Z,2025-03-31 01:00Z}'),
  ('*/20 2 * * *', '{2025-03-30 01:00Z,2025-03-31 00:00Z,2025-03-31 00:20Z}'),
  ('30 3 * * *', '{2025-03-30 01:30Z,2025-03-31 01:30Z}'),
  ('30 2 30 3 *', '{2025-03-30 01:00Z,2026-03-30 00:30Z}')) e (cron, slots);

-- In Havana they went from 00:00 to 01:00 on 11 March 2018, at 05:00 UTC.
select test.equal(bugle.next_slot(e.cron, 'America/Havana', '2018-03-11 02:00Z'), e.slot::timestamptz, e.cron)
from (values
  ('@daily', '2018-03-11 05:00Z'),
  ('0 30 0 11 3 *', '2018-03-11 05:00Z'),
  ('51 11 * * *', '2018-03-11 15:51Z')) e (cron, slot);

rollback;
