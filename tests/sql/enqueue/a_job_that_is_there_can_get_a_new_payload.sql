begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_id constant bigint := bugle.enqueue('noop', '{"n": 1}', p_unique_key => 'k');
begin
  perform test.equal(bugle.enqueue('noop', '{"n": 2}', p_unique_key => 'k', p_on_conflict => 'replace'), v_id,
    'the id');
  perform test.equal((test.job(v_id)).payload, '{"n": 2}', 'replaced while it is ready');
  perform test.refused($sql$select bugle.enqueue('noop', to_jsonb(repeat('x', 1048576)), p_unique_key => 'k',
    p_on_conflict => 'replace')$sql$, 'JB003');

  perform bugle.pause(v_id);
  perform bugle.enqueue('noop', '{"n": 3}', p_unique_key => 'k', p_on_conflict => 'replace');
  perform test.equal((test.job(v_id)).payload, '{"n": 3}', 'replaced while it is paused');
  perform bugle.resume(v_id);

  perform test.running(v_worker, v_id);
  perform test.equal(bugle.enqueue('noop', '{"n": 4}', p_unique_key => 'k', p_on_conflict => 'replace'), v_id,
    'the id');
  perform test.equal((test.job(v_id)).payload, '{"n": 3}', 'not while it runs');
  perform test.refused($sql$select bugle.enqueue('noop', p_unique_key => 'k', p_on_conflict => 'merge')$sql$, 'JB001',
    'p_on_conflict must be keep, replace or move, not ''merge''');
end
$$;

rollback;
