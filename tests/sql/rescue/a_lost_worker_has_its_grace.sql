begin;

update bugle.settings set lost_grace = '1 hour';

do $$
declare
  v_lost constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_lost);
begin
  perform test.equal(bugle.next_rescue_seconds(), null, 'nobody is missing');
  perform test.dies(v_lost);
  perform test.equal(bugle.note_lost(0), 1, 'lost workers');
  perform test.equal(bugle.rescue(), 0, 'rescued in the time of grace');
  assert bugle.next_rescue_seconds() between 3500 and 3601, 'the keeper is told when to come back';

  perform bugle.attach(v_lost, test.nonce(v_lost), array[v_held]);
  perform test.equal(bugle.next_rescue_seconds(), null, 'it came back');
  perform test.equal((test.job(v_held.id)).state, 'running', 'with its job');
  perform test.equal(test.complete(v_lost, v_held), null, 'which it completes');
end
$$;

rollback;
