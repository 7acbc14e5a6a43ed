begin;

update bugle.settings set lost_grace = '0';

do $$
declare
  v_lost constant bigint := test.register();
  v_next constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_lost);
begin
  perform test.dies(v_lost);
  perform bugle.note_lost(0);
  perform bugle.rescue();

  perform test.equal(test.complete(v_lost, v_held), 'fenced', 'before anybody claims it');
  perform test.equal((test.job(v_held.id)).state, 'ready', 'state');
  perform test.equal((test.running(v_next, v_held.id)).claim, 2::bigint, 'the next claim');
  perform test.equal(test.complete(v_lost, v_held), 'fenced', 'while another runs it');
  perform test.equal(test.complete(v_next, (v_held.id, 2)::bugle.held_job), null, 'the other completes it');
  perform test.equal(test.complete(v_lost, v_held), 'fenced', 'after its end');
end
$$;

rollback;
