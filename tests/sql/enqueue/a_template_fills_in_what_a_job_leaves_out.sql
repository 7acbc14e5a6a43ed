begin;

-- before the template is there: the rest of the transaction still gets it
insert into bugle.jobs (command) values ('templated'), ('noop');
insert into bugle.commands (name, queue, priority, delay) values ('templated', 'mail', 5, '1 minute');

do $$
declare
  v_id bigint;
  v_job bugle.jobs;
begin
  insert into bugle.jobs (command) values ('templated') returning id into v_id;
  v_job := test.job(v_id);
  perform test.equal(concat_ws(' ', v_job.queue, v_job.priority, v_job.run_at - now(), v_job.state),
    'mail 5 00:01:00 scheduled', 'by insert');
  v_job := test.job(bugle.enqueue('templated'));
  perform test.equal(concat_ws(' ', v_job.queue, v_job.priority, v_job.run_at - now(), v_job.state),
    'mail 5 00:01:00 scheduled', 'by function');
  v_job := test.job(bugle.enqueue('templated', p_queue => 'q', p_priority => 7, p_run_at => now() - interval '1 hour'));
  perform test.equal(concat_ws(' ', v_job.queue, v_job.priority, v_job.run_at - now(), v_job.state),
    'q 7 -01:00:00 ready', 'what it says holds');
  v_job := test.job(bugle.enqueue('noop'));
  perform test.equal(concat_ws(' ', v_job.queue, v_job.priority, v_job.state), 'default 0 ready',
    'others are as they were');
  v_job := test.job(bugle.enqueue('templated'));
  perform test.equal(v_job.queue, 'mail', 'also after another command');

  perform test.refused($sql$insert into bugle.jobs (command, deadline)
    values ('templated', now() + interval '30 seconds')$sql$,
    'JB001', 'column "deadline"%this job could never start');
  perform test.refused($sql$insert into bugle.jobs (command, idempotency_ttl) values ('templated', '1 hour')$sql$,
    'JB001');

  update bugle.commands c set queue = null, priority = null, delay = null where c.name = 'templated';
  perform test.equal((test.job(bugle.enqueue('templated'))).queue, 'default', 'no template any more');
end
$$;

rollback;
