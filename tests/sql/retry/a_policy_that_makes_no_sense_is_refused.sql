begin;

select test.refused(format('insert into bugle.retry_policies (name, %s) values (''x'', %s)', c.columns, c.value),
  '23514', '%' || c.named || '%')
from (values
  ('kind', '''nonsense''', ''), ('retries', '-1', 'retries_are_not_negative'),
    ('retries', 'null', 'retries_are_counted'),
  ('kind', '''endless''', 'retries_are_counted'), ('delay', '''-1 s''', 'delay_is_not_negative'),
    ('delay', '''11 years''', 'delay_is_not_negative'),
  ('max_delay', '''-1 s''', 'max_delay_is_not_negative'), ('factor', '0.5', 'factor_grows'),
    ('factor', '1001', 'factor_grows'),
  ('factor', '''NaN''', 'factor_grows'), ('jitter', '-0.1', 'jitter_is_a_share'),
    ('jitter', '1.1', 'jitter_is_a_share'),
  ('jitter', '''NaN''', 'jitter_is_a_share'), ('per_day', '3', 'daily_policies_count_days'),
  ('kind, retries', '''daily'', null', 'daily_policies_count_days'),
  ('kind, retries, per_day, days', '''daily'', null, 0, 2', 'daily_counts_are_sane')) c (columns, value, named);

rollback;
