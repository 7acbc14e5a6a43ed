begin;

do $$
declare
  v_job constant bigint := bugle.enqueue('noop');
begin
  perform test.refused(format('select bugle.restart(%s)', v_job), 'JB031',
    format('cannot restart job %s: it is ready', v_job));
  perform test.refused('select bugle.cancel(999999999)', 'JB030', 'there is no job 999999999');
  perform test.refused(format('select bugle.set_state(%s, ''running'')', v_job), 'JB001', '%"p_to"%running%');
  perform test.refused(format('select bugle.reschedule(%s, ''infinity'')', v_job), 'JB001', '%finite%');
  perform test.refused('select bugle.cancel_where()', 'JB001', '%without a filter%');
end
$$;

rollback;
