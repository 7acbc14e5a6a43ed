begin;

insert into bugle.commands (name, on_success, on_failure) values ('noop', 'thank', 'complain');
insert into bugle.commands (name, queue) values ('thank', 'thanks');

do $$
declare
  v_worker constant bigint := test.register();
begin
  insert into bugle.jobs (command) values ('noop');
  perform test.complete(v_worker, (select (c.id, c.claim)::bugle.held_job from test.claim(v_worker) c));
  perform test.equal((select j.queue from bugle.jobs_live j where j.command = 'thank'), 'thanks',
    'in the queue of its own template');
  perform test.fail(v_worker, test.running(v_worker, bugle.enqueue('noop', p_on_failure => 'alert')),
    p_retryable => false);
  perform test.equal((select string_agg(j.command, ' ') from bugle.jobs_live j
    where j.command in ('alert', 'complain')), 'alert', 'the job''s own comes first');
end
$$;

select test.refused($$insert into bugle.commands (name, on_failure) values ('loop', 'loop')$$, 'JB001',
  '%"name" (''loop'') and "on_failure" (''loop'') must differ');

rollback;
