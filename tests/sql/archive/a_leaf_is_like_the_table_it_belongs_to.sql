begin;

select bugle.add_day('failed', '2001-02-03');

select test.equal(obj_description('bugle.jobs_failed_20010203'::regclass), 'Jobs failed on 2001-02-03 (UTC).',
  'its comment');
select test.equal(
  array(select c.conname::text from pg_constraint c where c.conrelid = 'bugle.jobs_failed_20010203'::regclass
    and c.contype = 'c' order by 1),
  array(select c.conname::text from pg_constraint c where c.conrelid = 'bugle.jobs_failed'::regclass
    and c.contype = 'c' order by 1), 'its constraints');
select test.equal(bugle.add_day('failed', '2001-02-03'), false, 'it is made once');

rollback;
