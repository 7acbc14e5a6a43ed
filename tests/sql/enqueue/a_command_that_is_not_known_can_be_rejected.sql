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
update bugle.settings set known_commands_only = false;
select test.equal(count(bugle.enqueue('unknown')), 1::bigint, 'any again');

rollback;
