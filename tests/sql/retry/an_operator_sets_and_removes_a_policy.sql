begin;

do $$
begin
  perform test.equal(bugle.set_policy('once', 'fixed', 1), 'fixed, 1 retry, delay 00:00:05, jitter 0.1', 'one');
  perform test.equal(bugle.set_policy('once', 'daily', p_days => 1),
    'daily, 1 a day, 1 day, delay 00:00:05, jitter 0.1', 'one day');
  delete from bugle.changes;
  perform test.equal(bugle.set_policy('hasty', 'fixed', 3, '2 seconds', p_note => 'an outage'),
    'fixed, 3 retries, delay 00:00:02, jitter 0.1', 'added');
  perform test.equal(bugle.set_policy('hasty', p_retries => 5),
    'fixed, 5 retries, delay 00:00:02, jitter 0.1', 'what is left out stays');
  perform test.equal(bugle.set_policy('hasty', 'daily', p_per_day => 2, p_days => 3),
    'daily, 2 a day, 3 days, delay 00:00:02, jitter 0.1', 'of another kind');
  perform test.equal(bugle.set_policy('hasty', 'exponential'),
    'exponential, 15 retries, delay 00:00:02, factor 2, max_delay 01:00:00, jitter 0.1', 'and back');
  perform test.refused($q$select bugle.set_policy('hasty', p_jitter => 5)$q$, 'JB001',
    '%"jitter"%between 0 and 1, not ''5''');
  perform test.refused($q$select bugle.set_policy('hasty', 'often')$q$, 'JB001', '%"kind"%''often''');
  perform test.refused($q$select bugle.set_policy('hasty', 'endless', 3)$q$, 'JB001',
    '%"kind" (''endless'') and "retries" (''3'') must fit%');
  perform test.refused($q$select bugle.set_policy('hasty', p_days => 3)$q$, 'JB001',
    '%the others have neither per_day nor days');
  perform test.refused($q$select bugle.set_policy('')$q$, 'JB001', '%"name"%');
  perform test.refused($q$select bugle.set_policy(null)$q$, 'JB001', '%"name"%');
  insert into bugle.commands (name, retry_policy) values ('send', 'hasty');
  perform test.refused($q$select bugle.remove_policy('hasty')$q$, 'JB031', '%''hasty''%''send''');
  delete from bugle.commands where name = 'send';
  perform bugle.remove_policy('hasty', 'it is over');
  perform test.refused($q$select bugle.remove_policy('hasty')$q$, 'JB030', '%''hasty''');
  insert into bugle.retry_policies (name) values ('by_hand');
  perform test.equal(array(
      select concat_ws(' | ', c.verb, c.policy, c.from_state, c.to_state, c.note) from bugle.changes c order by c.id),
    array[
      'set_policy | hasty | fixed, 3 retries, delay 00:00:02, jitter 0.1 | an outage',
      'set_policy | hasty | fixed, 3 retries, delay 00:00:02, jitter 0.1 | '
        'fixed, 5 retries, delay 00:00:02, jitter 0.1',
      'set_policy | hasty | fixed, 5 retries, delay 00:00:02, jitter 0.1 | '
        'daily, 2 a day, 3 days, delay 00:00:02, jitter 0.1',
      'set_policy | hasty | daily, 2 a day, 3 days, delay 00:00:02, jitter 0.1 | '
        'exponential, 15 retries, delay 00:00:02, factor 2, max_delay 01:00:00, jitter 0.1',
      'remove_policy | hasty | exponential, 15 retries, delay 00:00:02, factor 2, max_delay 01:00:00, jitter 0.1 | '
        'removed | it is over',
      'set_policy | by_hand | exponential, 15 retries, delay 00:00:05, factor 2, max_delay 01:00:00, jitter 0.1'],
    'each is recorded, also what is done by hand');
end
$$;

rollback;
