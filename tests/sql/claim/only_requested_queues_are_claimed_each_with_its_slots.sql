begin;

do $$
declare
  v_worker constant bigint := test.register('{noop}', '{a,b,c}');
  v_claimed text;
begin
  perform bugle.enqueue('noop', p_queue => q) from unnest(array['a', 'b', 'c', 'A']) q, generate_series(1, 20);

  select string_agg(concat_ws(' ', q.queue, q.jobs), ', ' order by q.queue) into v_claimed
  from (
    select c.queue, count(*) as jobs
    from bugle.claim(v_worker, test.nonce(v_worker), array[
      ('a', 3, null, 'awake'), ('b', 15, null, 'awake')]::bugle.queue_request[]) c
    group by c.queue) q;

  perform test.equal(v_claimed, 'a 3, b 15', 'claimed');
  perform test.equal((select count(*) from bugle.jobs_live j where j.state = 'running'), 18::bigint,
    'no more than that runs');
  perform test.equal((select count(*) from test.claim(v_worker, 0, 'a')), 0::bigint, 'no slots, no jobs');
end
$$;

rollback;
