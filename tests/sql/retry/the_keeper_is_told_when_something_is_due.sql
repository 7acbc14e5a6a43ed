begin;

do $$
begin
  perform test.equal(bugle.next_due_seconds(), null, 'nothing is due');
  perform bugle.enqueue('noop', p_run_at => now() + interval '3 hours');
  assert bugle.next_due_seconds() between 10700 and 10800, 'a job';
  perform bugle.enqueue('noop', p_deadline => now() + interval '2 hours');
  assert bugle.next_due_seconds() between 7100 and 7200, 'a deadline';
  set local bugle.skip_checks = 'on';
  insert into bugle.jobs (command, state, answer_by) values ('noop', 'waiting', now() + interval '1 hour');
  assert bugle.next_due_seconds() between 3500 and 3600, 'an answer';
end
$$;

rollback;
