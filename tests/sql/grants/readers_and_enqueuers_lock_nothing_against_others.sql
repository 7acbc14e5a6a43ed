begin;

select bugle.enqueue('noop');

set local role bugle_viewer;
select test.refused(s, '42501')
from unnest(array['select id from bugle.jobs for update', 'select id from bugle.jobs_live for share',
  'select name from bugle.queues for key share',
  'lock table bugle.jobs in share mode', 'lock table bugle.jobs_live in row exclusive mode',
    'lock table bugle.settings in share update exclusive mode']) s;

set local role bugle_enqueuer;
select test.refused(s, '42501')
from unnest(array['select id from bugle.jobs for update', 'lock table bugle.jobs in share mode',
  'lock table bugle.jobs_live in access share mode',
  'lock table bugle.queues in access share mode']) s;

set local role bugle_worker;
select test.refused(s, '42501')
from unnest(array['lock table bugle.jobs in access share mode',
  'lock table bugle.registrations in access share mode']) s;

rollback;
