begin;

do $$
declare
  v_worker bigint;
  v_plain constant bigint := bugle.enqueue('same');
  v_chain constant bigint := test.chain('{a}', p_command => 'same');
begin
  v_worker := test.register('{same}');
  perform test.equal(array(select c.id from test.claim(v_worker, 5) c), array[v_plain], 'the executor runs the job');
  v_worker := test.register('{a}');
  perform test.equal(array(select c.id from test.claim(v_worker, 5) c), array[v_chain], 'and the step the chain');
end
$$;

rollback;
