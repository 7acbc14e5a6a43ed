begin;

do $$
declare
  v_id constant bigint := test.chain('{a,b,a}');
  v_plain constant bigint := bugle.enqueue('noop');
begin
  perform test.refused(format($s$select bugle.set_step(%s, 'a', 'done')$s$, v_id), 'JB001',
    'job % has 2 steps named ''a'': 1, 3');
  perform test.refused(format($s$select bugle.set_step(%s, 'x', 'done')$s$, v_id), 'JB001', 'job % has no step ''x''');
  perform test.refused(format($s$select bugle.set_step(%s, 4, 'done')$s$, v_id), 'JB001', 'job % has no step ''4''');
  perform test.refused(format($s$select bugle.set_step(%s, 0, 'done')$s$, v_id), 'JB001');
  perform test.refused(format($s$select bugle.set_step(%s, 1, 'running')$s$, v_id), 'JB001',
    '"p_state" must be done, skipped or pending, not ''running''');
  perform test.refused(format($s$select bugle.set_step(%s, 1, null)$s$, v_id), 'JB001');
  perform test.refused(format($s$select bugle.set_step(%s, 1, 'skipped', '{}')$s$, v_id), 'JB001',
    '"p_output" is given for a step that is skipped');
  perform test.refused(format($s$select bugle.set_step(%s, 1, 'done')$s$, v_plain), 'JB001', 'job % has no step ''1''');
  perform test.refused($s$select bugle.set_step(987654321, 1, 'done')$s$, 'JB030');
end
$$;

rollback;
