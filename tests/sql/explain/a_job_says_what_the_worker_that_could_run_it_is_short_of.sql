begin;

do $$
declare
  v_worker constant bigint := test.register('{noop}', '{default}', 2);
  v_id constant bigint := bugle.enqueue('noop');
  v_other bigint;
begin
  perform bugle.note_condition(v_worker, test.nonce(v_worker), 'too many open files', false, null);
  perform test.equal(test.reasons(v_id), '{shortage}', 'short of something');
  perform test.explained(v_id, 'shortage', 'Worker % (tester on host-1), which could run it, starts fewer jobs at '
    'present: too many open files.', 'Fix what it is short of, or start another worker. %');
  perform test.equal((select w.short_of from bugle.workers w), 'too many open files', 'the view of workers has it');

  perform bugle.note_condition(v_worker, test.nonce(v_worker), null, true, null);
  perform test.equal(test.reasons(v_id), '{shared_slots}', 'other databases have its slots');
  perform test.explained(v_id, 'shared_slots', 'The slots of worker % (tester on host-1), which could run it, are '
    'taken by jobs of other databases that the same process serves.');

  v_other := test.register('{noop}', '{default}', 1);
  perform test.explained(v_id, 'next', 'It is about to start: 0 jobs are ahead of it, 3 of 3 slots are free.');
  perform bugle.note_condition(v_worker, test.nonce(v_worker), null, false, null);
  perform bugle.detach(v_other, test.nonce(v_other));
  perform test.equal(test.reasons(v_id), '{next}', 'it is over');
end
$$;

rollback;
