begin;

do $$
declare
  v_worker constant bigint := test.register('{noop}', '{default}', 5);
  v_nonce constant uuid := test.nonce(v_worker);
  v_none constant bugle.minute_report[] := '{}';
  v_row record;
begin
  perform bugle.report_minutes(v_worker, v_nonce, v_none,
    array[('default', 3, 0), ('mail', 1, 2)]::bugle.bell_report[]);
  perform bugle.report_minutes(v_worker, v_nonce, v_none, array[('default', 4, 0)]::bugle.bell_report[]);
  perform bugle.report_minutes(v_worker, v_nonce, v_none);

  select sum(d.rings) as rings, sum(d.found_by_poll) as found into v_row
  from bugle.doorbell_minutes d
  where d.queue = 'default';
  perform test.equal(v_row.rings, 7::numeric, 'rings');
  perform test.equal(v_row.found, 0::numeric, 'found by the safety poll');
  perform test.equal((select d.found_by_poll from bugle.doorbell_minutes d where d.queue = 'mail'), 2::bigint, 'mail');

  update bugle.doorbell_minutes set minute = now() - interval '1 year';
  insert into bugle.late_updates (refused_at, worker, job, claim, verdict)
  values (now() - interval '1 year', v_worker, 1, 1, 'gone'), (now(), v_worker, 2, 1, 'gone');
  perform bugle.prune();
  perform test.equal((select count(*) from bugle.doorbell_minutes), 0::bigint, 'old minutes are removed');
  perform test.equal((select array_agg(u.job) from bugle.late_updates u), '{2}', 'old late updates are removed');
end
$$;

rollback;
