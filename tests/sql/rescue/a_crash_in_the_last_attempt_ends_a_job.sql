begin;

update bugle.settings set lost_grace = '0';

do $$
declare
  v_lost constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_lost, bugle.enqueue('noop', p_max_attempts => 1));
begin
  perform test.dies(v_lost);
  perform bugle.note_lost(0);
  perform bugle.rescue();

  perform test.equal(concat_ws(' ', (test.job(v_held.id)).state, (test.job(v_held.id)).reason),
    'failed attempts_exhausted', 'the row');
end
$$;

rollback;
