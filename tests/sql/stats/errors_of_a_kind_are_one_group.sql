begin;

select test.equal(bugle.fingerprint(a), bugle.fingerprint(b), a)
from (values
  ('user 17 not found', 'user 4711 not found'),
  ('cannot read "a.txt": gone', 'cannot read "b c.txt": gone'),
  ('job 6ba7b810-9dad-11d1-80b4-00c04fd430c8 is late', 'job 00000000-0000-0000-0000-000000000000 is late'),
  (E'timeout after 1.5s\n at line 7', E'timeout after 30s\n at line 9'),
  ('at 0x7ffe01', 'at 0xdeadbeef')) v (a, b);
select test.equal(bugle.fingerprint('disk full') <> bugle.fingerprint('disk broken'), true, 'others are others');

do $$
declare
  v_worker constant bigint := test.register('{noop}', '{default}', 5);
  v_held constant bugle.held_job[] := array(select test.running(v_worker) from generate_series(1, 3));
  v_row record;
begin
  perform test.fail(v_worker, v_held[1], 'order 1 is bad');
  perform test.fail(v_worker, v_held[2], 'order 2 is bad');
  perform test.fail(v_worker, v_held[3], 'no such host');

  select * into v_row from bugle.error_groups g limit 1;
  perform test.equal(v_row.attempts, 2::bigint, 'two of a kind come first');
  perform test.equal(v_row.fingerprint, 'order # is bad', 'what they have in common');
  perform test.equal(v_row.command, 'noop', 'whose');
  perform test.equal((select count(*) from bugle.error_groups), 2::bigint, 'two kinds');
  perform test.equal(v_row.is_complete, true, 'all of the hour');
  perform test.equal(not (select bool_or(g.is_complete) from bugle.group_errors('1 hour', 2) g), true, 'or the newest');
end
$$;

rollback;
