begin;

insert into bugle.commands (name, unique_payload, unique_mode, delay) values ('index', true, 'move', '5 seconds');

do $$
declare
  v_id constant bigint := bugle.enqueue('index', '{"a": 1, "b": 2}');
begin
  perform test.equal(bugle.enqueue('index', '{"b": 2, "a": 1}'), v_id, 'the same payload is the same job');
  perform test.refused($sql$insert into bugle.jobs (command, payload) values ('index', '{"a": 1, "b": 2}')$sql$,
    '23505');
  insert into bugle.jobs (command, payload) values ('index', '{"a": 2}');
  insert into bugle.jobs (command, payload, unique_key) values ('index', '{"a": 1, "b": 2}', 'a key of its own');

  update bugle.jobs_live j set run_at = now() + interval '1 second' where j.id = v_id;
  perform bugle.enqueue('index', '{"a": 1, "b": 2}');
  perform test.equal((test.job(v_id)).run_at, now() + interval '5 seconds', 'its command says: move');
  perform bugle.enqueue('index', '{"a": 1, "b": 2}', p_on_conflict => 'keep', p_run_at => now() + interval '1 hour');
  perform test.equal((test.job(v_id)).run_at, now() + interval '5 seconds', 'the caller''s word comes first');
end
$$;

rollback;
