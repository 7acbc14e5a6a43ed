begin;

do $$
declare
  v_case record;
begin
  for v_case in
    select *
    from (values
      ('''{}''', 'column "steps" must be a list of 1 to 100 commands, not 0'),
      ('array_fill(''a''::text, array[101])', 'column "steps" must be a list of 1 to 100 commands, not 101'),
      ('''{{a,b},{c,d}}''', 'column "steps" must be a list of 1 to 100 commands, not one of 2 dimensions'),
      ('''{a,null}''', 'column "steps" must have commands of 1 to 200 characters, not null'),
      ('''{a,""}''', 'column "steps" must have commands of 1 to 200 characters, not '''''),
      ('''{a," "}''', 'column "steps" must have commands of 1 to 200 characters, not '' '''),
      ('array[repeat(''x'', 201)]', 'column "steps" must have commands of 1 to 200 characters, not ''xxx%')) c (value,
        message)
  loop
    perform test.refused(format('insert into bugle.jobs (command, steps) values (''chain'', %s)', v_case.value),
      'JB001', v_case.message);
  end loop;
  perform test.refused($s$insert into bugle.jobs (command, steps, payload) values ('chain', '{a}', '[1]')$s$, 'JB001',
    'column "payload" of a chain must be a JSON object, not array');
  perform test.equal((select count(*) from bugle.chains), 0::bigint, 'nothing is left behind');

  insert into bugle.jobs (command, steps) values ('chain', '[5:6]={a,b}'), ('chain', array_fill('a'::text, array[100]));
  perform test.equal((select j.steps from bugle.jobs j where j.steps[1] = 'a' and cardinality(j.steps) = 2),
    '{a,b}'::text[], 'counted from 1');
end
$$;

rollback;
