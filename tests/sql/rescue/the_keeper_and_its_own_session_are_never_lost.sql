begin;

do $$
declare
  v_keeper constant bigint := test.register();
  v_here constant bigint := test.register();
begin
  perform test.dies(v_keeper);

  perform test.equal(bugle.note_lost(v_keeper), 0, 'the keeper itself, and a worker of this session');
  perform test.equal(bugle.note_lost(v_here), 1, 'another');
end
$$;

rollback;
