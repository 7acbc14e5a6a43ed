begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b}');
begin
  perform bugle.enqueue(c, p_priority => -1) from unnest(array['c', 'A', 'a ', 'a%']) c;
  perform bugle.enqueue('a');
  perform bugle.enqueue('b');

  perform test.equal(array(select c.command from test.claim(v_worker, 100) c), '{a,b}'::text[], 'what was claimed');
end
$$;

rollback;
