begin;

update bugle.settings set default_deadline = '2 hours', default_idempotency_ttl = '1 hour';
insert into bugle.commands (name, deadline, idempotency_ttl) values ('special', '5 minutes', '7 hours');

do $$
declare
  v_id bigint;
begin
  insert into bugle.jobs (command) values ('noop') returning id into v_id;
  perform test.equal((test.job(v_id)).deadline - now(), interval '2 hours', 'deadline');
  insert into bugle.jobs (command) values ('special') returning id into v_id;
  perform test.equal((test.job(v_id)).deadline - now(), interval '5 minutes', 'the command comes first');

  perform bugle.enqueue('noop', p_idempotency_key => 'a');
  perform bugle.enqueue('special', p_idempotency_key => 'a');
  perform bugle.enqueue('special', p_idempotency_key => 'b', p_idempotency_ttl => '1 minute');
  perform test.equal((select array_agg(k.expires_at - now() order by k.command, k.key) from bugle.idempotency_keys k),
    '{01:00:00,07:00:00,00:01:00}'::interval[], 'how long keys are remembered');
  update bugle.settings set default_deadline = null;
  perform test.equal((test.job(bugle.enqueue('noop'))).deadline, null::timestamptz, 'none any more');
end
$$;
select test.refused('update bugle.settings set default_deadline = ''0''', 'JB001');

rollback;
