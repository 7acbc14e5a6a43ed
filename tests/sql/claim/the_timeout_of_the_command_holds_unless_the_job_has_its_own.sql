begin;

insert into bugle.commands (name, timeout) values ('noop', '10 seconds');

do $$
declare
  v_worker constant bigint := test.register('{noop,other}');
begin
  perform bugle.enqueue('noop'), bugle.enqueue('noop', p_timeout => '3 seconds'), bugle.enqueue('other');

  perform test.equal(array(select c.timeout_seconds from test.claim(v_worker, 3) c),
    array[10, 3, null]::double precision[], 'timeouts');

  update bugle.settings set default_timeout = '7 seconds';
  perform bugle.enqueue('other');
  perform test.equal((select row(c.timeout_seconds, c.default_timeout_seconds)::text from test.claim(v_worker) c),
    '(,7)', 'the default of the database');
end
$$;

rollback;
