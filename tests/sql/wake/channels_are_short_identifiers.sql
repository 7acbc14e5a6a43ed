begin;

select test.equal(bugle.bell_channel(q) ~ '^bugle_bell_[0-9a-f]{1,16}$', true, q)
from unnest(array['default', '', repeat('ü', 100), 'a''; drop table x; --', '"']) q;
select test.equal(bugle.bell_channel('default') = bugle.bell_channel('Default'), false,
  'queues have channels of their own');
select test.equal(bugle.worker_channel(7), 'bugle_worker_7', 'a worker''s channel');

rollback;
