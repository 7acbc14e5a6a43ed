-- The shop that `bugle web --demo` shows: its people, its rules, the last week, and what is going on right now.

-- people: the login of the pages, and those whose actions are in bugle.changes
create role ada login in role bugle_viewer, bugle_operator, bugle_enqueuer, pg_monitor, pg_signal_backend;
create role bo login in role bugle_viewer, bugle_operator, bugle_enqueuer;
create role deploy login in role bugle_viewer, bugle_operator, bugle_enqueuer;
create role shop_worker login in role bugle_worker;

-- rules
insert into bugle.retry_policies (name, kind, retries, delay, factor, max_delay, jitter) values
  ('mail', 'exponential', 6, '20 seconds', 2, '10 minutes', 0.2),
  ('provider', 'exponential', 8, '15 seconds', 1.6, '5 minutes', 0.3),
  ('webhook', 'fixed', 4, '90 seconds', 2, '1 hour', 0);
insert into bugle.commands (
  name, queue, timeout, retry_policy, max_attempts, steps, order_key, limit_key, fair_key)
values
  ('send_receipt', 'mail', '20 seconds', 'mail', 7, null, null, null, null),
  ('send_newsletter', 'mail', '20 seconds', 'mail', 4, null, null, null, null),
  ('charge_card', 'payments', '10 seconds', 'provider', 9, null, null, null, null),
  ('refund', 'payments', '7 days', 'provider', 4, null, null, null, null),
  ('export_orders', 'exports', '10 minutes', null, 3, null, null, '$.tenant', '$.tenant'),
  ('prepare_photo', 'photos', '2 minutes', null, 3, '{fetch_photo,resize_photo,upload_photo}', null, null, null),
  ('deliver_webhook', 'webhooks', '15 seconds', 'webhook', 5, null, '$.endpoint', null, null),
  ('import_catalog', 'default', '10 minutes', null, 2, null, null, null, null),
  ('import_page', 'default', '1 minute', null, 3, null, null, null, null),
  ('collect_metrics', 'metrics', '5 seconds', null, 1, null, null, null, null),
  ('sync_stock', 'default', '1 minute', null, 5, null, null, null, null);
insert into bugle.commands (name, queue, timeout, max_attempts, required_keys) values
  ('check_prices', 'default', '1 minute', 3, '{region}');
select bugle.set_limits('payments', p_max_running => 4, p_max_starts => 90, p_starts_period => '1 minute');
select bugle.set_limits('exports', p_max_running => 6, p_max_running_per_key => 1);
select bugle.set_command_limit('import_page', 3);
insert into bugle.queues (name) values ('campaigns');

insert into bugle.schedules (name, cron, timezone, command, queue, payload) values
  ('nightly-accounts', '30 2 * * *', 'Europe/Berlin', 'export_orders', 'exports', '{"tenant": "accounting"}'),
  ('weekly-newsletter', '0 9 * * TUE', 'America/New_York', 'send_newsletter', 'mail', '{"campaign": "weekly"}'),
  ('month-end', '0 6 1 * *', 'Europe/Berlin', 'close_books', 'default', '{}');
insert into bugle.schedules (name, every, command, queue, overlap) values
  ('metrics', '20 seconds', 'collect_metrics', 'metrics', 'skip'),
  ('stock', '2 minutes', 'sync_stock', 'default', 'skip');
-- one that fails: its payload lacks the key that the command requires
insert into bugle.schedules (name, every, command, queue) values ('prices', '1 minute', 'check_prices', 'default');

-- a worker that was lost three hours ago, with two jobs; the workers of today are 2 and 3
insert into bugle.registrations (name, host, process_id, version, protocol, queues, slots, commands, life_key,
  backend_pid, started_at, seen_at, completed, failed, lost_at)
values ('shop-0', 'shop-a', 4711, null, bugle.protocol(), '{photos,exports}', '{3,4}',
  '{fetch_photo,resize_photo,upload_photo,export_orders}', 0, 0, now() - interval '2 days',
  now() - interval '3 hours 8 seconds', 8412, 96, now() - interval '3 hours');

-- the last week, as workers would have reported it: a minute each for the last hour, longer ones before
insert into bugle.minutes (
  minute, queue, command, worker, completed, failed, others, run_seconds, wait_seconds, run, wait)
select t.minute, c.queue, c.command, 0, n.done, n.failed, 0, n.done * c.run, n.done * 0.01,
  -- what the others leave is in the span of the median, also of a single attempt
  array(
    select case
        when b = c.bucket then n.all_ - (
          select sum(round(n.all_ * o.share)) from unnest(array[0.04, 0.2, 0.24, 0.08, 0.02]) o (share))
        else round(n.all_ * coalesce((array[0.04, 0.2, 0, 0.24, 0.08, 0.02])[b - c.bucket + 3], 0)) end::bigint
    from generate_series(1, 21) b),
  array(
    select case
        when b = 4 + c.slow then n.all_ - (
          select sum(round(n.all_ * o.share)) from unnest(array[0.1, 0.3, 0.1, 0.04, 0.01]) o (share))
        else round(n.all_ * coalesce((array[0.1, 0, 0.3, 0.1, 0.04, 0.01])[b - 2 - c.slow], 0)) end::bigint
    from generate_series(1, 21) b)
from (
    select g, 1 as minutes
    from generate_series(date_trunc('minute', now()) - interval '65 minutes', now(), '1 minute') g
    union all
    select g, 5
    from generate_series(date_trunc('hour', now()) - interval '26 hours', now() - interval '70 minutes', '5 minutes') g
    union all
    select g, 30
    from generate_series(date_trunc('hour', now()) - interval '7 days', now() - interval '27 hours', '30 minutes') g
  ) t (minute, minutes)
  -- the rates of the customers who come from now on
  cross join (values
    ('mail', 'send_receipt', 44, 0.01, 0.15, 8, 0), ('mail', 'send_newsletter', 9, 0.004, 0.13, 8, 0),
    ('payments', 'charge_card', 43, 0.012, 0.5, 9, 1), ('payments', 'refund', 0.1, 0, 0.03, 6, 0),
    ('exports', 'export_orders', 1.1, 0.01, 30.0, 15, 4), ('photos', 'prepare_photo', 4.8, 0.008, 2.6, 12, 1),
    ('webhooks', 'deliver_webhook', 43, 0.02, 0.23, 9, 0), ('metrics', 'collect_metrics', 3, 0, 0.03, 6, 0),
    ('default', 'sync_stock', 0.5, 0.01, 3.5, 12, 0))
    c (queue, command, rate, failures, run, bucket, slow)
  cross join lateral (
    -- the day of a shop: busiest at this hour, quiet half a day ago. What fails is tried again
    select c.rate * t.minutes * (0.62 + 0.38 * cos(extract(epoch from now() - t.minute) / 3600 * pi() / 12))
      * (0.92 + 0.16 * random())
      * case when c.command = 'charge_card' and t.minute > now() - interval '48 minutes' then 2.6 else 1 end)
    a (attempts)
  cross join lateral (
    select case
        when c.command = 'charge_card' and t.minute > now() - interval '48 minutes' then 0.62
        when c.command = 'charge_card' and t.minute between now() - interval '9 hours' and now() - interval '8 hours'
          then 0.4
        else c.failures * 2 * random() end) f (rate)
  cross join lateral (
    select s.done, s.failed, s.done + s.failed as all_
    from (
      select floor(a.attempts * (1 - f.rate) + random())::bigint as done,
        floor(a.attempts * f.rate + random())::bigint as failed) s) n
where n.all_ > 0
  -- the last newsletter was sent yesterday
  and (c.command <> 'send_newsletter' or t.minute < now() - interval '20 hours');

-- jobs that have ended. A table of today, because history is kept by the day
select setval('bugle.job_ids', 481200);
create temporary table leaf as
select max(d.day) as day from bugle.history_days d where d.day <= (now() at time zone 'utc')::date;

insert into bugle.jobs_ended (
  id, state, command, queue, payload, attempt, claim, worker, created_at, run_at, updated_at,
  first_started_at, started_at, finished_at, result, day)
overriding system value
select nextval('bugle.job_ids'), 'completed', c.command, c.queue, c.payload, 1, 1, 2 + n % 2, t.at, t.at, t.at + c.run,
  t.at + interval '9 ms', t.at + interval '9 ms', t.at + c.run, c.result, l.day
from generate_series(1, 4000) n
  cross join lateral (select now() - interval '20 seconds' * (4000 - n) * (0.9 + 0.1 * random()) as at) t
  cross join lateral (
    select *
    from (values
      (0, 'send_receipt', 'mail', interval '120 ms', jsonb_build_object('order', 90000 + n, 'to',
        (array['ines', 'tom', 'yuki', 'omar', 'lena', 'raj'])[1 + n % 6] || '@example.org'),
        '{"accepted": true}'::jsonb),
      (1, 'charge_card', 'payments', '340 ms', jsonb_build_object('order', 90000 + n, 'cents', 1490 + n % 70 * 100),
        jsonb_build_object('charge', 'ch_' || md5(n::text))),
      (2, 'deliver_webhook', 'webhooks', '180 ms',
        jsonb_build_object('endpoint', 'hooks.example.net/' || n % 7, 'event',
        'order.paid'), '{"status": 200}'),
      (3, 'send_receipt', 'mail', '95 ms', jsonb_build_object('order', 90000 + n, 'to', 'kim@example.org'),
        '{"accepted": true}'),
      (4, 'prepare_photo', 'photos', '1700 ms', jsonb_build_object('photo', 'p/' || md5(n::text) || '.jpg'),
        '{"sizes": [320, 960, 1920]}')) v (kind, command, queue, run, payload, result)
    where v.kind = n % 5) c
  cross join leaf l;

insert into bugle.jobs_failed (id, state, command, queue, payload, attempt, claim, worker, reason, last_error,
  last_error_code, created_at, run_at, updated_at, first_started_at, started_at, finished_at, day)
overriding system value
select nextval('bugle.job_ids'), 'failed', c.command, c.queue, c.payload, c.attempt, c.attempt, 2 + n % 2, c.reason,
  c.error, c.code, t.at, t.at, t.at + c.took,
  case c.attempt when 1 then t.at + c.took - interval '400 ms' else t.at + interval '12 ms' end,
  t.at + c.took - interval '400 ms', t.at + c.took, l.day
from generate_series(1, 37) n
  cross join lateral (select now() - interval '31 minutes' * (37 - n) - interval '3 minutes' as at) t
  cross join lateral (
    select *
    from (values
      (0, 'charge_card', 'payments',
        jsonb_build_object('order', 89000 + n, 'cents', 9900, 'card', 'tok_9007199254740993'),
        9, 'attempts_exhausted',
        'POST https://api.payments.example/v1/charges: 503 Service Unavailable: upstream connect error',
        'http_503', interval '9 minutes'),
      (1, 'deliver_webhook', 'webhooks', '{"endpoint": "hooks.example.net/old", "event": "order.paid"}', 5,
        'attempts_exhausted', 'POST https://hooks.example.net/old: 410 Gone', 'http_410', '6 minutes'),
      (2, 'prepare_photo', 'photos', jsonb_build_object('photo', 'p/' || md5(n::text) || '.heic'), 1, 'not_retryable',
        E'cannot decode the image: unsupported feature: HEIC grid\n  in resize_photo, p/' || md5(n::text) || '.heic',
        'bad_image', '2 seconds'),
      (3, 'send_receipt', 'mail', jsonb_build_object('order', 89000 + n, 'to', 'nobody@example.invalid'), 1,
        'not_retryable', '550 5.1.1 <nobody@example.invalid>: Recipient address rejected: User unknown', 'bad_address',
        '700 ms')) v (kind, command, queue, payload, attempt, reason, error, code, took)
    where v.kind = (n * 7) % 4) c
  cross join leaf l;

insert into bugle.attempts (job, claim, attempt, worker, started_at, ended_at, outcome, command, code, error)
select j.id, a, a, case a when j.attempt then j.worker else 2 + (j.id + a) % 2 end, s.at,
  s.at + interval '400 ms', 'failed', j.command, j.last_error_code, j.last_error
from bugle.jobs_failed j
  cross join lateral generate_series(1, j.attempt) a
  cross join lateral (
    -- a card is charged after longer and longer waits
    select j.first_started_at + (j.started_at - j.first_started_at) * case
      when j.attempt = 1 then 0
      when j.command = 'charge_card' then (power(1.6, a - 1) - 1) / (power(1.6, j.attempt - 1) - 1)
      else (a - 1) / (j.attempt - 1)::double precision end) s (at);

-- the jobs of the worker that was lost started again on another. It was only frozen: what it reported came too late
create temporary table rescued as
select e.id, e.started_at
from bugle.jobs_ended e
where e.command = 'prepare_photo'
  and e.started_at > now() - interval '3 hours' + interval '10 seconds'
order by e.started_at
limit 2;
insert into bugle.attempts (job, claim, attempt, worker, started_at, ended_at, outcome, command, error)
select r.id, 1, 1, 1, now() - interval '3 hours 14 seconds', now() - interval '3 hours' + interval '2.2 seconds',
  'rescued', 'prepare_photo', 'its worker was lost'
from rescued r;
update bugle.jobs_ended e
set attempt = 2, claim = 2, created_at = now() - interval '3 hours 15 seconds',
  run_at = now() - interval '3 hours 15 seconds', first_started_at = now() - interval '3 hours 14 seconds',
  started_at = now() - interval '3 hours' + interval '2.4 seconds',
  finished_at = now() - interval '3 hours' + interval '4.1 seconds'
from rescued r
where e.id = r.id;
insert into bugle.late_updates (refused_at, worker, job, claim, verdict, late_by)
select now() - interval '3 hours' + interval '38 seconds', 1, r.id, 1, 'fenced', interval '36 seconds'
from rescued r;

-- what people did
set session authorization deploy;
select bugle.pause_schedule('month-end', 'until the audit is over');
set session authorization bo;
select bugle.pause_queue('photos', 'the object store is being moved');
select bugle.resume_queue('photos', 'moved');
select bugle.pause_queue('campaigns', 'until the text is approved');
select bugle.restart_where(p_command => 'send_receipt', p_limit => 3, p_note => 'INC-4312: the address was corrected');
select bugle.cancel(
  bugle.enqueue('send_newsletter', '{"campaign": "spring"}', 'mail', p_run_at => now() + interval '3 days'),
  'wrong month');
reset session authorization;
update bugle.changes set changed_at = changed_at - case who
    when 'bo' then interval '47 minutes'
    when 'deploy' then interval '5 hours'
    else interval '6 days' end;

-- what is going on: a campaign, tenants that take turns, an endpoint that blocks its order key, a command that no
-- worker
-- serves, a refund that waits for an answer, a workflow with a failure in the middle, one that runs, and one to come
insert into bugle.jobs (command, queue, payload, priority, run_at)
select 'send_newsletter', 'mail',
  jsonb_build_object('campaign', 'november', 'to', 'customer-' || n || '@example.org'), 10,
  now() + interval '2 hours' + n * interval '2 seconds'
from generate_series(1, 240) n;
insert into bugle.jobs (command, queue, payload)
select 'send_newsletter', 'campaigns',
  jsonb_build_object('campaign', 'winter', 'to', 'customer-' || n || '@example.org')
from generate_series(1, 60) n;
insert into bugle.jobs (command, queue, payload)
select 'export_orders', 'exports',
  jsonb_build_object('tenant', t.tenant, 'from', '2026-10-01', 'format', 'csv', 'part', n)
from (values ('northwind', 9), ('acme', 4), ('globex', 3), ('initech', 2), ('umbrella', 1)) t (tenant, jobs)
  cross join lateral generate_series(1, t.jobs) n;
insert into bugle.jobs (command, queue, payload)
select 'deliver_webhook', 'webhooks',
  jsonb_build_object('endpoint', 'hooks.example.net/slow-partner', 'event', 'order.paid',
  'order', 91000 + n)
from generate_series(1, 12) n;
insert into bugle.jobs (command, queue, payload)
select 'translate_product', 'catalog', jsonb_build_object('sku', 'TEA-' || 100 + n, 'to', 'ja')
from generate_series(1, 6) n;
select bugle.enqueue('refund', jsonb_build_object('order', 90417, 'cents', 12900, 'reason', 'damaged'), 'payments');
select bugle.enqueue('refund', jsonb_build_object('order', 90533, 'cents', 4900, 'reason', 'late'), 'payments');
select bugle.enqueue('import_catalog', '{"supplier": "Nordic Tea", "pages": 7}');
insert into bugle.jobs (command, queue, payload)
select 'prepare_photo', 'photos', jsonb_build_object('photo', 'p/' || md5(n::text) || '.jpg')
from generate_series(1, 4) n;
select bugle.enqueue('prepare_photo', '{"photo": "p/scan-0042.heic"}', 'photos');
select count(*) from bugle.enqueue_workflow('{"jobs": {
  "orders":   {"command": "close_books", "payload": {"part": "orders", "month": "2026-10"}},
  "payments": {"command": "close_books", "payload": {"part": "payments", "month": "2026-10"}},
  "stock":    {"command": "close_books", "payload": {"part": "stock", "month": "2026-10"}},
  "revenue":  {"command": "close_books", "payload": {"part": "revenue"}, "after": ["orders", "payments"]},
  "vat":      {"command": "close_books", "payload": {"part": "vat", "fails": true}, "after": ["revenue"]},
  "valuation": {"command": "close_books", "payload": {"part": "valuation"}, "after": ["stock"]},
  "report":   {"command": "close_books", "payload": {"part": "report"}, "after": ["vat", "valuation"]},
  "archive":  {"command": "close_books", "payload": {"part": "archive"}, "after": ["report"]},
  "notify":   {"command": "send_receipt", "queue": "mail", "payload": {"to": "board@example.org"},
               "after": [{"job": "report", "on_failure": "run"}]}}}');
select count(*) from bugle.enqueue_workflow('{"jobs": {
  "collect":  {"command": "close_books", "payload": {"part": "collect", "seconds": 20}},
  "de":       {"command": "close_books", "payload": {"part": "de", "seconds": 60}, "after": ["collect"]},
  "fr":       {"command": "close_books", "payload": {"part": "fr", "seconds": 90}, "after": ["collect"]},
  "jp":       {"command": "close_books", "payload": {"part": "jp", "seconds": 45}, "after": ["collect"]},
  "merge":    {"command": "close_books", "payload": {"part": "merge", "seconds": 20}, "after": ["de", "fr", "jp"]},
  "publish":  {"command": "deliver_webhook", "queue": "webhooks", "payload": {"endpoint": "hooks.example.net/search"},
               "after": ["merge"]}}}');
