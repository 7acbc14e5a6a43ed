begin;

do $$
declare
  v_worker constant bigint := test.register('{}');
begin
  perform bugle.enqueue('a');
  perform bugle.enqueue('b');
  perform test.equal((select count(*) from test.claim(v_worker, 100)), 0::bigint, 'nothing is announced yet');

  perform bugle.serve(v_worker, test.nonce(v_worker), '{a}', '[{"name": "app"}]');
  perform test.equal(array(select c.command from test.claim(v_worker, 100) c), '{a}'::text[], 'what was claimed');
  perform test.equal((select w.hosts from bugle.workers w where w.id = v_worker), '[{"name": "app"}]'::jsonb, 'hosts');

  perform bugle.enqueue('a');
  perform bugle.serve(v_worker, test.nonce(v_worker), '{b}');
  perform test.equal(array(select c.command from test.claim(v_worker, 100) c), '{b}'::text[], 'what was claimed then');

  perform test.refused(format('select bugle.serve(%s, %L, %s)', v_worker, test.nonce(v_worker), w.what), 'JB014')
  from unnest(array['null', $w$'{null}'$w$, $w$'{a}', '{}'$w$]) w (what);
  perform test.refused(format($s$select bugle.serve(%s, %L, '{a}')$s$, v_worker, gen_random_uuid()), 'JB010');
end
$$;

rollback;
