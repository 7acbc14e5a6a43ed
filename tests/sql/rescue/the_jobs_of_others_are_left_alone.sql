begin;

update bugle.settings set lost_grace = '0';

do $$
declare
  v_lost constant bigint := test.register();
  v_alive constant bigint := test.register();
  v_rescued constant bugle.held_job := test.running(v_lost);
  v_kept constant bugle.held_job := test.running(v_alive);
  v_before constant bugle.jobs := test.job(v_kept.id);
begin
  perform test.dies(v_lost);
  perform bugle.note_lost(0);
  perform bugle.rescue();

  perform test.equal((test.job(v_rescued.id)).state, 'ready', 'the lost worker''s');
  perform test.equal(test.job(v_kept.id), v_before, 'the other worker''s');
end
$$;

rollback;
