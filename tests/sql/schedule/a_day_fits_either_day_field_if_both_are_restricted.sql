begin;

-- the 13th or a Friday; but a field that begins with * restricts nothing of its own accord, so then both must fit
select test.equal(
  array(select to_char(p.slot at time zone 'UTC', 'DD Dy')
    from bugle.schedule_preview(e.cron, 'UTC', 4, '2026-02-01 00:00Z') p (slot)),
  e.days::text[], e.cron)
from (values
  ('0 0 13 * FRI', '{06 Fri,13 Fri,20 Fri,27 Fri}'),
  ('0 0 10 * FRI', '{06 Fri,10 Tue,13 Fri,20 Fri}'),
  ('0 0 13 * *', '{13 Fri,13 Fri,13 Mon,13 Wed}'),
  ('0 0 * * FRI', '{06 Fri,13 Fri,20 Fri,27 Fri}'),
  ('0 0 */2 * FRI', '{13 Fri,27 Fri,13 Fri,27 Fri}')) e (cron, days);

rollback;
