begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_late constant bigint := bugle.enqueue('noop', p_deadline => now() + interval '1 second');
  v_early constant bigint := bugle.enqueue('noop', p_deadline => now() + interval '1 second');
begin
  update bugle.jobs_live j set deadline = now() where j.id = v_late;

  perform test.equal(array(select c.id from test.claim(v_worker, 10) c), array[v_early], 'claimed');
end
$$;

rollback;
