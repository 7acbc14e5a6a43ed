begin;

create temporary table told as
select z.zone, s.name as session, null::timestamptz[] as slots
from unnest(array['Europe/Berlin', 'America/New_York', 'Asia/Kathmandu']) z (zone),
  unnest(array['UTC', 'Pacific/Auckland', 'America/Havana']) s (name);
do $$
declare
  v_row record;
begin
  for v_row in select t.zone, t.session from told t loop
    perform set_config('TimeZone', v_row.session, true);
    update told t
    set slots = array(
      select p.slot from bugle.schedule_preview('30 1,2 * * *', v_row.zone, 200,
        timestamptz '2025-03-01 00:00Z') p (slot))
      || bugle.next_interval_slot('1 day', '2025-03-01 00:00Z', '2025-11-20 11:00Z')
    where t.zone = v_row.zone and t.session = v_row.session;
  end loop;
end
$$;
select test.equal(count(distinct t.slots), 3::bigint, 'one list for each zone') from told t;
select test.equal(count(*), 0::bigint, 'whole days of 24 hours') from told t where t.slots[201] <> '2025-11-21 00:00Z';

rollback;
