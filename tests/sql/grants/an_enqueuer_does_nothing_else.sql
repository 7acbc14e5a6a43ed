begin;

select bugle.enqueue('noop');
set local role bugle_enqueuer;

select test.refused(format('insert into bugle.jobs (command, %I) values (''noop'', default)', c), '42501')
from unnest(array['id', 'state', 'attempt', 'crashes', 'claim', 'worker', 'reason', 'result', 'last_error',
  'last_error_code', 'progress',
  'progress_note', 'answer_by', 'answer_token', 'created_at', 'updated_at', 'first_started_at', 'started_at',
    'finished_at', 'day']) c;
select test.refused(s, '42501')
from unnest(array['select payload from bugle.jobs', 'select * from bugle.jobs', 'update bugle.jobs set priority = 1',
  'delete from bugle.jobs',
  'truncate bugle.jobs', 'insert into bugle.jobs_live (command) values (''noop'')', 'select * from bugle.jobs_live',
    'select * from bugle.registrations',
  'select * from bugle.settings', 'select bugle.promote()', 'select bugle.resolve(1)',
    'select bugle.claim(1, gen_random_uuid(), ''{}'')',
  'select bugle.register(''w'', ''h'', 1, ''v'', 1, ''{q}'', ''{1}'', ''{c}'')',
    'select setval(''bugle.job_ids'', 1)']) s;

rollback;
