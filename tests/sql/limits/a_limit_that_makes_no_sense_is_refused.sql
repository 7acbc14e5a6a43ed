begin;

select test.refused($$select bugle.set_limits('q', p_max_running => -1)$$, 'JB001',
  'the queue ''q'': "max_running" must be at least 1, not ''-1''');
select test.refused($$select bugle.set_limits('q', p_max_running_per_key => -5)$$, 'JB001',
  'the queue ''q'': "max_running_per_key" must be at least 1, not ''-5''');
select test.refused($$select bugle.set_limits('q', p_max_starts => 10)$$, 'JB001',
  'the queue ''q'': "max_starts" (''10'') and "starts_period" (null) must be set together');
select test.refused($$select bugle.set_limits('q', p_starts_period => '1 minute')$$, 'JB001',
  'the queue ''q'': "max_starts" (null) and "starts_period" (''00:01:00'') must be set together');
select test.refused($$select bugle.set_limits('q', p_max_starts => 0, p_starts_period => '1 minute')$$, 'JB001',
  'the queue ''q'': "max_starts" (null) and "starts_period" (''00:01:00'') must be set together');
select test.refused($$select bugle.set_limits('q', p_max_starts => 1, p_starts_period => '0')$$, 'JB001',
  'the queue ''q'': "starts_period" must be between%');
select test.refused($$select bugle.set_limits('q', p_max_starts_per_key => 1,
  p_starts_per_key_period => '1000 years')$$, 'JB001', 'the queue ''q'': "starts_per_key_period" must be between%');
select test.refused($$select bugle.set_limits('q', p_order_on_retry => 'skip')$$, 'JB001',
  'the queue ''q'': "order_on_retry" must be block or pass, not ''skip''');
select test.refused($$select bugle.set_limits(' ', p_max_running => 1)$$, 'JB001',
  'the queue '' '': "name" must have 1 to 100 characters that are not all blank, not '' ''');
select test.refused($$select bugle.set_limits(null, p_max_running => 1)$$, 'JB001',
  'the queue null: "name" must not be null');
select test.refused($$select bugle.set_command_limit('c', -1)$$, 'JB001',
  'the command ''c'': "max_running" must be at least 1, not ''-1''');
select test.refused($$select bugle.set_command_limit('c', null)$$, 'JB001',
  '"p_max_running" must be a number, not null');
select test.refused($$select bugle.set_command_limit('', 1)$$, 'JB001',
  'the command '''': "name" must have 1 to 200 characters%');

select test.refused($$insert into bugle.jobs (command, order_key) values ('c', '')$$, 'JB001',
  'column "order_key" must have 1 to 300 characters, not 0: ''''');
select test.refused($$insert into bugle.jobs (command, limit_key) values ('c', repeat('x', 301))$$, 'JB001',
  'column "limit_key" must have 1 to 300 characters, not 301: %');
select test.refused($$insert into bugle.jobs (command, fair_key) values ('c', '')$$, 'JB001',
  'column "fair_key" must have 1 to 300 characters, not 0: ''''');

rollback;
