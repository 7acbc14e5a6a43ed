begin;
-- The checks of tests/common/sentences.sql: every test that breaks one of them fails.

select bugle.enqueue('noop');

select test.refused(format('update bugle.jobs_live set %s', c.change), '23514', '%' || c.named || '%')
from (values
  ($$state = 'running'$$, 'running_jobs_have_a_claim'),
  ($$state = 'paused'$$, 'paused_jobs_know_where_they_were'),
  ($$paused_from = 'ready'$$, 'paused_jobs_know_where_they_were'),
  ($$finished_at = now()$$, 'live_jobs_are_not_finished')) c (change, named);

rollback;
