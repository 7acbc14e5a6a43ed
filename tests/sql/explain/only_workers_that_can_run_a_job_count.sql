begin;

do $$
declare
  v_first constant bigint := test.register('{noop}', '{default}', 1);
  v_second constant bigint := test.register('{other}', '{default}', 2);
  v_noop bigint;
  v_other bigint;
begin
  perform test.running(v_first);
  perform bugle.enqueue('noop') from generate_series(1, 3);
  v_noop := bugle.enqueue('noop');
  v_other := bugle.enqueue('other');

  perform test.explained(v_other, 'next',
    'It is about to start: 0 jobs are ahead of it, 2 of 2 slots are free.', 'Wait: it starts at once.');
  perform test.explained(v_noop, 'busy', 'All 1 slots of queue ''default'' on workers that can run it are busy, and 3 '
    'jobs are ahead of it.', format('%%or lower its priority number: select bugle.set_priority(%s, …);', v_noop));
  perform test.equal((select e.facts from bugle.explain(v_noop) e), '{"slots": 1, "running": 1, "ahead": 3}', 'facts');
end
$$;

rollback;
