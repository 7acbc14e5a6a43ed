begin;

select test.equal(bugle.error_line(v.error), v.line, v.line)
from (values
  ('disk full', 'disk full'),
  (E'cannot send\ncaused by: connection refused', 'caused by: connection refused'),
  (E'the program exited with code 1\nTraceback (most recent call last):\n  File "a.py", line 3, in f\n    main()\n'
    'OSError: [Errno 111] Connection refused\n', 'OSError: [Errno 111] Connection refused'),
  (E'the program exited with code 1\nError: connect ECONNREFUSED\n    at TCP.x (node:net:1) {\n  errno: -111\n}\n\n'
    'Node.js v18.1', 'Error: connect ECONNREFUSED'),
  (E'Exception in thread "main" a.B\r\n\tat a.C(D.java:1)\r\nCaused by: java.E: late\r\n\t... 3 more\r\n',
    'Caused by: java.E: late'),
  (E'  \n  indented only \n', 'indented only'),
  ('', ''),
  (null, null)) v (error, line);

do $$
declare
  v_worker constant bigint := test.register('{noop,other}', '{default}', 5);
  v_code constant text := 'exit_1';
begin
  perform test.fail(v_worker, test.running(v_worker), E'the program exited with code 1\nno such host', v_code);
  perform test.fail(v_worker, test.running(v_worker), E'the program exited with code 1\ndisk full', v_code);
  perform test.fail(v_worker, test.running(v_worker, bugle.enqueue('other')),
    E'the program exited with code 1\ndisk full', v_code);

  perform test.equal((
      select array_agg(concat_ws(' ', g.command, g.code, g.fingerprint) order by g.command, g.fingerprint)
      from bugle.error_groups g),
    '{noop exit_1 disk full,noop exit_1 no such host,other exit_1 disk full}', 'groups');
end
$$;

rollback;
