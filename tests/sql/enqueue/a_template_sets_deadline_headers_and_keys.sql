begin;

insert into bugle.commands (name, deadline, headers, order_key, limit_key, fair_key)
values ('templated', '1 hour', '{"team": "a", "trace": "none"}', '$.account', '$.tenant', '"all"');

do $$
declare
  v_job bugle.jobs;
begin
  v_job := test.job(bugle.enqueue('templated', '{"account": 7, "tenant": "x"}', p_headers => '{"trace": "1"}'));
  perform test.equal(v_job.deadline - now(), interval '1 hour', 'deadline');
  perform test.equal(v_job.headers, '{"team": "a", "trace": "1"}'::jsonb, 'its own headers come first');
  perform test.equal(array[v_job.order_key, v_job.limit_key, v_job.fair_key], '{7,x,all}'::text[], 'keys');

  v_job := test.job(bugle.enqueue('templated', '[1]', p_order_key => 'mine', p_run_at => now() + interval '1 day',
    p_deadline => now() + interval '2 days'));
  perform test.equal(v_job.deadline - now(), interval '2 days', 'what it sets applies');
  perform test.equal(array[v_job.order_key, v_job.limit_key, v_job.fair_key], array['mine', null, 'all'],
    'a path that leads nowhere gives no key');
  v_job := test.job(bugle.enqueue('templated', p_run_at => now() + interval '1 day'));
  perform test.equal(v_job.deadline - now(), interval '1 day 1 hour', 'counted from when it is due');
end
$$;

rollback;
