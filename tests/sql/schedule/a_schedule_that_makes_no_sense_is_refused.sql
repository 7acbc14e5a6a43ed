begin;

-- the message names the columns, and within a cron expression the field
create function pg_temp.insert_with(p_columns text, p_values text) returns text
language sql
return format('insert into bugle.schedules (name, command, %s) values (''s'', ''noop'', %s)', p_columns, p_values);

select test.refused(pg_temp.insert_with('cron', quote_literal(e.cron)), 'JB005', e.message)
from (values
  ('60 * * * *', 'column "cron", field "minute" (''60''): not from 0 to 59'),
  ('* 24 * * *', '%field "hour" (''24'')%'),
  ('* * 0 * *', '%field "day of month" (''0'')%'),
  ('* * * 13 *', '%field "month" (''13'')%'),
  ('* * * FEBR *', '%field "month" (''FEBR''): not a number from 1 to 12, nor one of JAN%'),
  ('* * * * 8', '%field "day of week" (''8'')%'),
  ('60 * * * * *', '%field "second" (''60'')%'),
  ('*/0 * * * *', '%field "minute" (''*/0''): a step%'),
  ('30-10 * * * *', '%field "minute" (''30-10''): a range must ascend%'),
  ('1,,2 * * * *', '%field "minute"%'),
  ('-1 * * * *', '%field "minute"%'),
  ('1.5 * * * *', '%field "minute"%'),
  ('99999999999 * * * *', '%field "minute"%'),
  ('* * * *', '%there must be 5 fields, or 6, not 4'),
  ('* * * * * * *', '%not 7'),
  ('', '%not 0'),
  ('@sometimes', '%not a known name'),
  ('0 0 30 2 *', 'column "cron"%never fire')) e (cron, message);

select test.refused(pg_temp.insert_with(e.columns, e.cells), 'JB005', format('%%"%s"%%', e.named))
from (values
  ('payload', '''{}''', 'cron'),
  ('cron, every', '''@daily'', ''1 hour''', 'cron'),
  ('every', '''0''', 'every'),
  ('every', '''999 milliseconds''', 'every'),
  ('every', '''1 month''', 'every'),
  ('every', '''4000 days''', 'every'),
  ('cron, timezone', '''@daily'', ''Mars/Olympus''', 'timezone'),
  ('cron, timezone', '''@daily'', ''abc5''', 'timezone'),
  ('cron, queue', '''@daily'', '' ''', 'queue'),
  ('cron, queue', '''@daily'', repeat(''q'', 101)', 'queue'),
  ('cron, timeout', '''@daily'', ''0''', 'timeout'),
  ('cron, max_attempts', '''@daily'', 0', 'max_attempts'),
  ('cron, retry_policy', '''@daily'', ''nobody''''s''', 'retry_policy'),
  ('cron, headers', '''@daily'', ''[]''', 'headers'),
  ('cron, payload', '''@daily'', to_jsonb(repeat(''x'', 2000000))', 'payload'),
  ('cron, misfire', '''@daily'', ''hope''', 'misfire'),
  ('cron, catch_up_limit', '''@daily'', 0', 'catch_up_limit'),
  ('cron, overlap', '''@daily'', ''queue''', 'overlap'),
  ('cron, starts_at', '''@daily'', ''infinity''', 'ends_at'),
  ('cron, starts_at, ends_at', '''@daily'', ''2030-01-02'', ''2030-01-01''', 'ends_at'),
  ('cron, ends_at', '''@daily'', now() - interval ''1 day''', 'ends_at')) e (columns, cells, named);

select test.refused('insert into bugle.schedules (name, cron, command) values (''s'', ''@daily'', '' '')', 'JB005',
  'column "command"%');
select test.refused('insert into bugle.schedules (name, cron, command) values ('''', ''@daily'', ''noop'')', 'JB005',
  'the schedule '''': "name"%');
select test.equal(count(*), 0::bigint, 'nothing was stored') from bugle.schedules;

insert into bugle.schedules (name, cron, command) values ('s', '@daily', 'noop');
select test.refused('update bugle.schedules set cron = ''x * * * *''', 'JB005', 'column "cron", field "minute"%');

rollback;
