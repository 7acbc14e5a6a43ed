begin;

select test.refused($$select bugle.register('w', 'h', 1, 'v', bugle.protocol() + 1, '{default}', '{1}', '{noop}')$$,
  'JB013', 'this worker speaks protocol 2, the schema speaks 1');
select test.refused($$select bugle.register('w', 'h', 1, 'v', bugle.protocol() - 1, '{default}', '{1}', '{noop}')$$,
  'JB013');
select test.refused($$select bugle.register('w', 'h', 1, 'v', bugle.protocol(), '{}', '{}', '{noop}')$$, 'JB014');
select test.refused($$select bugle.register('w', 'h', 1, 'v', bugle.protocol(), '{default}', '{1}', '{null}')$$,
  'JB014');
select test.refused($$select bugle.register('w', 'h', 1, 'v', bugle.protocol(), null, null, null)$$, 'JB014');
select test.refused($$select bugle.register('w', 'h', 1, 'v', bugle.protocol(), '{a,b}', '{1}', '{noop}')$$,
  'JB014');

select test.equal(count(*), 0::bigint, 'nobody is registered') from bugle.registrations;

rollback;
