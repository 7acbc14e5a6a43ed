begin;

update bugle.settings set lost_grace = '0';

do $$
declare
  v_lost constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_lost);
  v_own constant bugle.held_job := test.running(v_lost);
  v_late record;
begin
  perform test.equal(test.complete(v_lost, v_own), null, 'one that it holds');
  perform test.equal(test.complete(v_lost, v_own), 'repeated', 'and once more');
  perform test.equal((select count(*) from bugle.late_updates), 0::bigint, 'neither is late');

  perform test.dies(v_lost);
  perform bugle.note_lost(0);
  perform bugle.rescue();
  perform test.equal(test.complete(v_lost, v_held), 'fenced', 'after the rescue');
  perform test.equal(test.fail(v_lost, (0, 1)::bugle.held_job), 'gone', 'a job that does not exist');

  select * into v_late from bugle.late_updates u where u.job = v_held.id;
  perform test.equal(v_late.worker, v_lost, 'worker');
  perform test.equal(v_late.verdict, 'fenced', 'verdict');
  perform test.equal(v_late.late_by >= interval '0', true, 'how late: since the rescue');
  perform test.equal((select u.verdict from bugle.late_updates u where u.job = 0), 'gone', 'the other');
  perform test.equal((select u.late_by is null from bugle.late_updates u where u.job = 0), true, 'not known');
end
$$;

rollback;
