begin;

-- In Berlin the clocks went from 02:00 to 03:00 on 30 March 2025, at 01:00 UTC.
select test.equal(
  array(select p.slot from bugle.schedule_preview(e.cron, 'Europe/Berlin', cardinality(e.slots::timestamptz[]), '2025-03-29 12:00Z') p (slot)),
  e.slots::timestamptz[], e.cron)
from (values
  ('30 2 * * *', '{2025-03-30 01:00Z,2025-03-31 00:30Z}'),
  ('0 2,3 * * *', '{2025-03-30 01:00Z,2025-03-31 00:00Z,2025-03-31 01:00Z}'),
  ('*/20 2 * * *', '{2025-03-30 01:00Z,2025-03-31 00:00Z,2025-03-31 00:20Z}'),
  ('30 3 * * *', '{2025-03-30 01:30Z,2025-03-31 01:30Z}'),
  ('30 2 30 3 *', '{2025-03-30 01:00Z,2026-03-30 00:30Z}')) e (cron, slots);

rollback;
