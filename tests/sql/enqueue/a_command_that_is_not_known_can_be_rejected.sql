begin;

select bugle.enqueue('unknown');
update bugle.settings set known_commands_only = true;
insert into bugle.commands (name) values ('known'), ('other');

select test.refused('insert into bugle.jobs (command) values (''knwon'')', 'JB006', 'there is no command ''knwon''');
select test.refused('select bugle.enqueue(''known'', p_on_success => ''nobody'')', 'JB006', '%''nobody''');
select test.refused('select bugle.enqueue(''chain'', p_steps => ''{known,b,a}'')', 'JB006', '%''a'', ''b''');
select test.equal(count(bugle.enqueue('chain', p_steps => '{known,other}', p_on_failure => 'other')), 1::bigint,
  'a chain');
select test.equal(count(bugle.enqueue('known')), 1::bigint, 'a known one');
do $$
declare
  v_hint text;
begin
  perform bugle.enqueue('knwon');
exception when sqlstate 'JB006' then
  get stacked diagnostics v_hint = pg_exception_hint;
  perform test.equal(v_hint like 'Did you mean ''known''? %', true, v_hint);
end
$$;
select test.equal(bugle.nearest_command('charge'), null, 'nothing like it');
select test.equal(array[bugle.letters_apart('', 'ab'), bugle.letters_apart('ab', 'ba'), bugle.letters_apart('aü', 'aü'),
  bugle.letters_apart('send_mial', 'send_mail'), bugle.letters_apart('a', '')], '{2,1,0,1,1}'::integer[], 'distances');
select test.refused('select bugle.set_command_limit(''knwon'', 4)', 'JB006', 'there is no command ''knwon''');
select bugle.set_command_limit('known', 4);
select test.refused($$insert into bugle.schedules (name, every, command) values ('s', '1 hour', 'knwon')$$, 'JB006',
  'there is no command ''knwon''');
insert into bugle.schedules (name, every, command, steps) values ('s', '1 hour', 'chain', '{known,other}');
select test.refused($$update bugle.schedules set steps = '{known,otter}'$$, 'JB006', '%''otter''');
update bugle.settings set known_commands_only = false;
select test.equal(count(bugle.enqueue('unknown')), 1::bigint, 'any again');

rollback;
