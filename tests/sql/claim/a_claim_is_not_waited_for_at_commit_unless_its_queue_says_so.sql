begin;

insert into bugle.queues (name, synchronous_claims) values ('careful', true), ('lax', false);

do $$
declare
  v_worker constant bigint := test.register('{noop}', '{careful,lax,default}');
begin
  set local synchronous_commit = 'on';
  perform test.claim(v_worker, 1, 'careful');
  perform test.equal(current_setting('synchronous_commit'), 'on', 'a careful queue');
  perform test.claim(v_worker, 1, 'lax');
  perform test.equal(current_setting('synchronous_commit'), 'off', 'others');
  set local synchronous_commit = 'on';
  perform test.claim(v_worker, 1, 'default');
  perform test.equal(current_setting('synchronous_commit'), 'off', 'queues without a row');
end
$$;

rollback;
