begin;

do $$
declare
  v_worker bigint := test.register('{noop}', '{default}', 5);
  v_old constant bigint := bugle.enqueue('noop');
begin
  update bugle.settings set unserved_limit = '10 minutes';
  update bugle.jobs_live j set updated_at = now() - interval '1 hour';
  perform test.equal(bugle.expire(), 0, 'a worker serves it');
  perform bugle.detach(v_worker, test.nonce(v_worker));

  perform test.equal(bugle.expire(), 0, 'its only worker has signed off just now');
  perform test.equal((test.job(v_old)).state, 'ready', 'it waits for the next one');

  update bugle.unserved_routes u set since = now() - interval '9 minutes';
  perform test.equal(bugle.expire(), 0, 'nine minutes without a worker');
  v_worker := test.register('{noop}', '{default}', 5);
  perform bugle.expire();
  perform bugle.detach(v_worker, test.nonce(v_worker));
  perform bugle.expire();
  perform test.equal((select u.since from bugle.unserved_routes u), now(), 'a worker that came starts the time anew');

  update bugle.unserved_routes u set since = now() - interval '10 minutes';
  perform test.equal(bugle.expire(), 1, 'ten minutes without a worker');
  perform test.equal((test.job(v_old)).reason, 'no_executor', 'why');
end
$$;

rollback;
