begin;

do $$
declare
  v_id bigint;
begin
  insert into bugle.commands (name, steps) values ('import', '{a,b}');
  insert into bugle.jobs (command) values ('import') returning id into v_id;
  perform test.equal((test.job(v_id)).steps, '{a,b}'::text[], 'by a plain insert');
  insert into bugle.jobs (command, steps) values ('import', '{c}') returning id into v_id;
  perform test.equal((test.job(v_id)).steps, '{c}'::text[], 'its own steps win');
  perform test.refused($s$insert into bugle.commands (name, steps) values ('odd', '{}')$s$, 'JB001',
    '%"steps" must be a list%');
end
$$;

rollback;
