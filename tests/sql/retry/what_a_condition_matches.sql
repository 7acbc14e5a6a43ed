begin;

do $$
declare
  v_result jsonb;
  v_path jsonpath;
  v_matches boolean;
begin
  for v_result, v_path, v_matches in
    values ('{"a": 1}'::jsonb, '$.a == 1'::jsonpath, true), ('{"a": 1}', '$.a == 2', false), ('{"a": 1}', '$.b', false),
      ('{"a": true}', '$.a', true), ('{"a": false}', '$.a', false), ('{"a": null}', '$.a', false),
      ('{"a": 0}', '$.a', true), ('{"a": [1, 5]}', '$.a[*] ? (@ > 3)', true), ('{"a": [1]}', '$.a[*] ? (@ > 3)', false),
      ('"text"', '$.a.b', false), ('"busy"', '$ == "busy"', true), ('{"a": 1}', 'strict $.x.y', false),
      (null, '$', false), ('{"a": 1}', null, false)
  loop
    perform test.equal(bugle.is_met(v_result, v_path), v_matches, format('%s %s', v_result, v_path));
  end loop;
  perform test.refused($sql$insert into bugle.commands (name, retry_when) values ('x', '$.a ===')$sql$, '42601');
end
$$;

rollback;
