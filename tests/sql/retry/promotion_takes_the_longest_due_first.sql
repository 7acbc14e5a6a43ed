begin;

do $$
declare
  v_ids bigint[];
begin
  v_ids := array(select bugle.enqueue('noop', p_run_at => now() + interval '1 day') from generate_series(1, 3));
  update bugle.jobs_live j set run_at = now() - make_interval(secs => j.id - v_ids[1]) where j.id = any (v_ids);

  perform test.equal((select p.promoted from bugle.promote(2) p), 2, 'as many as asked for');
  perform test.equal((test.job(v_ids[1])).state, 'scheduled', 'the youngest is left');
  perform test.equal((select p.next_due_seconds from bugle.promote(0) p), 0::double precision, 'and due at once');
end
$$;

rollback;
