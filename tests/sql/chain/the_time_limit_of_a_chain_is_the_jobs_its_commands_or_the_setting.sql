begin;

do $$
declare
  v_worker constant bigint := test.register('{a}');
begin
  perform test.chain('{a}');
  perform test.equal((select c.timeout_seconds from test.claim(v_worker) c), 1800::double precision, 'half an hour');
  update bugle.settings set chain_timeout = '1 minute';
  perform test.chain('{a}');
  perform test.equal((select c.timeout_seconds from test.claim(v_worker) c), 60::double precision, 'the setting');
  insert into bugle.commands (name, timeout) values ('chain', '2 minutes');
  perform test.chain('{a}');
  perform test.equal((select c.timeout_seconds from test.claim(v_worker) c), 120::double precision, 'the command');
  perform bugle.enqueue('chain', p_steps => '{a}', p_timeout => '3 minutes');
  perform test.equal((select c.timeout_seconds from test.claim(v_worker) c), 180::double precision, 'the job');
end
$$;

rollback;
