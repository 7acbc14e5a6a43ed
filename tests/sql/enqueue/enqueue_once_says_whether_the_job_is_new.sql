begin;

do $$
declare
  v_first constant record := bugle.enqueue_once('noop', '{"n": 1}', p_unique_key => 'k');
  v_second constant record := bugle.enqueue_once('noop', '{"n": 2}', p_unique_key => 'k');
  v_plain constant record := bugle.enqueue_once('noop');
begin
  perform test.equal(v_first.created, true, 'the first is new');
  perform test.equal(v_second.created, false, 'the second is not');
  perform test.equal(v_second.id, v_first.id, 'it is the first');
  perform test.equal(bugle.enqueue('noop', '{"n": 3}', p_unique_key => 'k'), v_first.id, 'enqueue answers with the id');
  perform test.equal((test.job(v_first.id)).payload, '{"n": 1}', 'it is left as it is');
  perform test.equal(v_plain.created, true, 'without a key each is new');
  perform test.equal((select count(*) from bugle.jobs), 2::bigint, 'jobs');
end
$$;

rollback;
