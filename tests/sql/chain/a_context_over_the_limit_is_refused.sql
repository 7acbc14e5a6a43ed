begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b}');
  v_held constant bugle.held_job := test.running(v_worker, test.chain('{a,b}'));
begin
  update bugle.settings set max_payload_bytes = 8192;
  perform test.start_step(v_worker, v_held);
  perform test.finish_step(v_worker, v_held, 1, jsonb_build_object('x', repeat(md5('1'), 200)));
  perform test.refused(format($s$select test.finish_step(%s, (%s, %s), 2,
    jsonb_build_object('y', repeat(md5('2'), 200)))$s$,
    v_worker, v_held.id, v_held.claim), 'JB003',
      'column "context" would have % bytes after step ''b'', the limit is 8192');
  perform test.equal((test.job(v_held.id)).step, 1, 'nothing changed');
end
$$;

rollback;
