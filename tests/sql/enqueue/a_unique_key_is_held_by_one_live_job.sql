begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_id bigint;
begin
  insert into bugle.jobs (command, unique_key) values ('noop', 'k') returning id into v_id;

  perform test.refused($sql$insert into bugle.jobs (command, unique_key) values ('noop', 'k')$sql$, '23505',
    '%jobs_live_unique_key%');
  insert into bugle.jobs (command, unique_key) values ('noop', 'k') on conflict do nothing;
  perform test.equal((select count(*) from bugle.jobs), 1::bigint, 'on conflict do nothing leaves it out');
  perform test.refused($sql$insert into bugle.jobs (command, unique_key) values ('noop', 'k')
    on conflict (command, unique_key) do nothing$sql$, '42P10');
  insert into bugle.jobs (command, unique_key) values ('other', 'k'), ('noop', 'K');
  insert into bugle.jobs (command) values ('noop'), ('noop');

  perform test.complete(v_worker, test.running(v_worker, v_id));
  insert into bugle.jobs (command, unique_key) values ('noop', 'k');
  perform test.equal((test.job(v_id)).unique_key, 'k', 'history keeps the key');
end
$$;

rollback;
