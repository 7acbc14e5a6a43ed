begin;

update bugle.settings set lost_grace = '0', crash_limit = 1;

do $$
declare
  v_lost constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_lost);
begin
  perform test.dies(v_lost);
  perform bugle.note_lost(0);
  perform bugle.rescue();

  perform test.equal((test.job(v_held.id)).reason, 'crash_loop', 'reason');
end
$$;

rollback;
