begin;

update bugle.settings set lost_grace = '0';

do $$
declare
  v_first constant bigint := test.register();
  v_lost constant bigint := test.register();
  v_last constant bigint := test.register();
  v_before bigint;
  v_found bigint[];
  v_read bigint;
begin
  for n in 1..10 loop
    perform test.running(v_first, bugle.enqueue('noop'));
    perform test.running(v_last, bugle.enqueue('noop'));
  end loop;
  perform test.running(v_lost, bugle.enqueue('noop'));
  perform test.dies(v_lost);
  perform bugle.note_lost(0);

  v_before := (select t.idx_tup_fetch + t.seq_tup_read from pg_stat_xact_user_tables t
    where t.relid = 'bugle.jobs_live'::regclass);
  v_found := array(select l.worker from bugle.lost_workers() l);
  v_read := (select t.idx_tup_fetch + t.seq_tup_read - v_before from pg_stat_xact_user_tables t
    where t.relid = 'bugle.jobs_live'::regclass);

  perform test.equal(v_found, array[v_lost], 'the lost worker');
  perform test.equal(v_read, 1::bigint, 'rows read');
end
$$;

rollback;
