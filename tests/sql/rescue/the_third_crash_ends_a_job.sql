begin;

update bugle.settings set lost_grace = '0';

do $$
declare
  v_id constant bigint := bugle.enqueue('noop');
  v_lost bigint;
  v_job bugle.jobs;
begin
  for n in 1..3 loop
    perform test.equal((test.job(v_id)).state, 'ready', 'before crash ' || n);
    v_lost := test.register();
    perform test.running(v_lost, v_id);
    perform test.dies(v_lost);
    perform bugle.note_lost(0);
    perform bugle.rescue();
  end loop;

  v_job := test.job(v_id);
  perform test.equal(concat_ws(' ', v_job.state, v_job.reason, v_job.crashes, v_job.attempt), 'failed crash_loop 3 3',
    'the row');
  perform test.equal(v_job.worker, v_lost, 'it says on which worker');
  perform test.equal((select count(*) from bugle.attempts a where a.job = v_id), 3::bigint, 'attempts on record');
end
$$;

rollback;
