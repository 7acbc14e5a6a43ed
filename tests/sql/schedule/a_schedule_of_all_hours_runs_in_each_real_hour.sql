begin;

select test.equal(
  array(select p.slot from bugle.schedule_preview(e.cron, e.zone, cardinality(e.slots::timestamptz[]),
    e.after::timestamptz) p (slot)),
  e.slots::timestamptz[], format('%s in %s after %s', e.cron, e.zone, e.after))
from (values
  ('0 * * * *', 'Europe/Berlin', '2025-03-29 23:30Z', '{2025-03-30 00:00Z,2025-03-30 01:00Z,2025-03-30 02:00Z}'),
  ('@hourly', 'Europe/Berlin', '2025-10-25 23:30Z', '{2025-10-26 00:00Z,2025-10-26 01:00Z,2025-10-26 02:00Z}'),
  ('*/30 * * * *', 'Europe/Berlin', '2025-10-26 00:30Z', '{2025-10-26 01:00Z,2025-10-26 01:30Z,2025-10-26 02:00Z}'),
  -- half an hour back, at 15:00 UTC
  ('10 * * * *', 'Australia/Lord_Howe', '2025-04-05 14:00Z', '{2025-04-05 14:10Z,2025-04-05 15:40Z}'),
  ('40 * * * *', 'Australia/Lord_Howe', '2025-04-05 14:00Z', '{2025-04-05 14:40Z,2025-04-05 15:10Z,2025-04-05 16:10Z}'),
  -- back over midnight: 23:00 to 24:00 comes twice, at the end of the only day that fits
  ('30 * 25 10 *', 'Asia/Beirut', '2025-10-25 20:00Z',
    '{2025-10-25 20:30Z,2025-10-25 21:30Z,2026-10-24 22:30Z}')) e (cron, zone, after, slots);

rollback;
