begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job := test.running(v_worker);
  v_found record;
begin
  select b.* into v_found from bugle.begin_step(v_worker, test.nonce(v_worker), v_held, 'charge') b;
  perform test.equal(concat_ws(' ', v_found.verdict, v_found.is_done), 'f', 'new');
  perform test.equal(bugle.end_step(v_worker, test.nonce(v_worker), v_held, 'charge', 0, '{"paid": 5}'), null, 'ended');
  perform test.equal(bugle.end_step(v_worker, test.nonce(v_worker), v_held, 'charge', 0, '{"paid": 6}'), 'repeated',
    'ended again');
  perform bugle.begin_step(v_worker, test.nonce(v_worker), v_held, 'mail');
  perform bugle.end_step(v_worker, test.nonce(v_worker), v_held, 'mail', 0, null, 'no such address', 'bad');
  perform test.equal(test.steps(v_held.id), 'charge done, mail failed', 'steps');

  perform test.fail(v_worker, v_held);
  perform bugle.reschedule(v_held.id, now());
  v_held := test.running(v_worker, v_held.id);
  select b.* into v_found from bugle.begin_step(v_worker, test.nonce(v_worker), v_held, 'charge') b;
  perform test.equal(v_found.is_done, true, 'known in the next attempt');
  perform test.equal(v_found.output, '{"paid": 5}'::jsonb, 'with what it put out');
  select b.* into v_found from bugle.begin_step(v_worker, test.nonce(v_worker), v_held, 'mail') b;
  perform test.equal(v_found.is_done, false, 'a failed one is begun again');
  perform test.fail(v_worker, v_held, p_retryable => false);
  perform test.equal((select d.failed_step from bugle.dead_letters d where d.id = v_held.id), 'mail',
    'the dead letter names it');
  perform test.refused(format($s$select bugle.begin_step(%s, %L, (%s, %s), '')$s$, v_worker, test.nonce(v_worker),
    v_held.id, v_held.claim), 'JB001');
end
$$;

rollback;
