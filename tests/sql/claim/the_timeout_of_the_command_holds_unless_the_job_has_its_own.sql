begin;

insert into bugle.commands (name, timeout) values ('noop', '10 seconds');

do $$
declare
  v_worker constant bigint := test.register('{noop,other}');
begin
  perform bugle.enqueue('noop'), bugle.enqueue('noop', p_timeout => '3 seconds'), bugle.enqueue('other');

  perform test.equal(array(select c.timeout_seconds from test.claim(v_worker, 3) c),
    array[10, 3, null]::double precision[], 'timeouts');
end
$$;

rollback;
