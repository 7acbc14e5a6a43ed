begin;

select test.equal(bugle.set_limits('r', p_max_running => 2, p_max_starts => 10, p_starts_period => '1 minute'),
  'max_running 2, max_starts 10 per 00:01:00', 'what holds now');
select test.equal(bugle.set_limits('r', p_max_running => 0, p_max_running_per_key => 3, p_order_on_retry => 'pass',
  p_note => 'launch day'),
  'max_running_per_key 3, max_starts 10 per 00:01:00, order_on_retry pass', 'what is left out stays, 0 takes away');
select test.equal(bugle.set_limits('r', p_max_starts => 20),
  'max_running_per_key 3, max_starts 20 per 00:01:00, order_on_retry pass', 'the period stays');
select test.equal(bugle.set_limits('r', p_max_starts => 0, p_max_running_per_key => 0, p_order_on_retry => 'block'),
  null, 'nothing is left');
select bugle.set_command_limit('heavy', 4);

select test.equal(
  (select array_agg(concat_ws(' | ', c.verb, c.queue, c.command, c.from_state, c.to_state, c.note) order by c.id)
    from bugle.changes c
    where c.queue = 'r' or c.command = 'heavy'),
  array[
    'set_limits | r | max_running 2, max_starts 10 per 00:01:00',
    'set_limits | r | max_running 2, max_starts 10 per 00:01:00 | max_running_per_key 3, max_starts 10 per 00:01:00, '
      'order_on_retry pass | launch day',
    'set_limits | r | max_running_per_key 3, max_starts 10 per 00:01:00, order_on_retry pass | max_running_per_key 3, '
      'max_starts 20 per 00:01:00, order_on_retry pass',
    'set_limits | r | max_running_per_key 3, max_starts 20 per 00:01:00, order_on_retry pass',
    'set_command_limit | heavy | max_running 4'],
  'each change');

rollback;
