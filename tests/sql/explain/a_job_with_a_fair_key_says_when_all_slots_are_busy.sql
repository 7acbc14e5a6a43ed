begin;

do $$
declare
  v_worker constant bigint := test.register('{noop}', '{default}', 1);
  v_id bigint;
begin
  perform test.running(v_worker);
  perform bugle.enqueue('noop', p_fair_key => 'a') from generate_series(1, 2);
  v_id := bugle.enqueue('noop', p_fair_key => 'a');

  perform test.equal(test.reasons(v_id), '{busy,fair_turn}', 'the reason, and its place in the turns');
  perform test.explained(v_id, 'busy',
    'All 1 slots of queue ''default'' are busy, and 2 jobs of its own fair key ''a'' are ahead of it.');
  perform test.explained(v_id, 'fair_turn', '%: 2 jobs of its own key ''a'' are ahead of it.');
  perform test.equal(test.reasons(bugle.enqueue('noop', p_fair_key => 'b')), '{busy}', 'the first of its key');
end
$$;

rollback;
