begin;

do $$
declare
  v_payload jsonb;
begin
  foreach v_payload in array array['{}', '[]', 'null', '"text"', '1.5', 'true', '{"a": {"b": [1, null]}}']::jsonb[] loop
    perform test.equal((test.job(bugle.enqueue('noop', v_payload))).payload, v_payload, 'the payload');
  end loop;
  perform test.refused($sql$insert into bugle.jobs (command, payload) values ('noop', '{')$sql$, '22P02');
end
$$;

rollback;
