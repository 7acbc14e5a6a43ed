begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held constant bugle.held_job := test.running(v_worker);
begin
  perform test.equal(test.reasons(v_held.id), '{running}', 'all is well');

  update bugle.registrations r set seen_at = clock_timestamp() - interval '50 seconds' where r.id = v_worker;
  perform test.equal(test.reasons(v_held.id), '{worker_silent,running}', 'it is silent');
  perform test.explained(v_held.id, 'worker_silent', 'Its worker % (tester on host-1) has given no sign of life for 50 '
    's.', 'It counts as lost after %, if another worker is alive.');

  update bugle.registrations r set lost_at = now() - interval '50 seconds' where r.id = v_worker;
  perform test.equal(test.reasons(v_held.id), '{worker_lost,running}', 'it was lost');
  perform test.explained(v_held.id, 'worker_lost', 'Its worker % (tester on host-1) was lost 50 s ago.',
    'Another worker takes it over once this one has been lost for %, if one is alive.');

  perform bugle.detach(v_worker, test.nonce(v_worker));
  perform test.explained(v_held.id, 'worker_lost', 'Its worker % (tester on host-1) signed off 0 ms ago without it.');
  delete from bugle.registrations;
  perform test.explained(v_held.id, 'worker_lost', 'Its worker % is not registered any more.');
end
$$;

rollback;
