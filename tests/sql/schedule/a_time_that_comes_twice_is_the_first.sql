begin;

-- In Berlin the clocks went from 03:00 back to 02:00 on 26 October 2025, at 01:00 UTC.
select test.equal(
  array(select p.slot from bugle.schedule_preview(e.cron, 'Europe/Berlin', cardinality(e.slots::timestamptz[]),
    e.after::timestamptz) p (slot)),
  e.slots::timestamptz[], format('%s after %s', e.cron, e.after))
from (values
  ('30 2 * * *', '2025-10-25 12:00Z', '{2025-10-26 00:30Z,2025-10-27 01:30Z}'),
  ('30 2 * * *', '2025-10-26 00:30Z', '{2025-10-27 01:30Z}'),
  ('30 2 * * *', '2025-10-26 01:15Z', '{2025-10-27 01:30Z}'),
  ('0 2,3 * * *', '2025-10-25 12:00Z', '{2025-10-26 00:00Z,2025-10-26 02:00Z,2025-10-27 01:00Z}')) e (cron, after,
    slots);

rollback;
