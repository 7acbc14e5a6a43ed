begin;

insert into bugle.schedules (name, cron, command, overlap, misfire) values
  ('allow', '0 * * * *', 'noop', 'allow', 'catch_up'),
  ('skip', '0 * * * *', 'noop', 'skip', 'catch_up');
update bugle.schedules set next_at = '2026-01-01 00:00Z';

do $$
declare
  v_worker constant bigint := test.register();
begin
  perform test.equal(bugle.fire_schedules('2026-01-01 01:00Z'), 3, 'two and one');
  perform test.equal((select count(*) from bugle.schedule_runs r where r.schedule = 'skip' and r.skipped = 'overlap'),
    1::bigint, 'noted');
  perform test.complete(v_worker, (c.id, c.claim)::bugle.held_job) from test.claim(v_worker, 100) c;
  perform test.equal(bugle.fire_schedules('2026-01-01 02:00Z'), 2, 'it has ended');
end
$$;

rollback;
