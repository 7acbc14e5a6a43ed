begin;

create function pg_temp.chain(p_queue text, p_order_key text, p_limit_key text,
  p_fair_key text) returns bigint language sql as $$
  insert into bugle.jobs (command, steps, queue, order_key, limit_key, fair_key)
  values ('story', '{one,two}', p_queue, p_order_key, p_limit_key, p_fair_key)
  returning id
$$;

do $$
declare
  v_worker constant bigint := test.register('{one,two}', '{chains_narrow,chains_ordered,chains_fair,chains_keys}');
  v_other constant bigint := test.register('{one}', '{chains_narrow,chains_ordered,chains_fair,chains_keys}');
  v_ids bigint[];
begin
  perform bugle.set_limits('chains_narrow', p_max_running => 2);
  perform pg_temp.chain('chains_narrow', null, null, null) from generate_series(1, 3);
  perform bugle.enqueue('one', p_queue => 'chains_narrow');
  perform test.equal(array(select c.command from test.claim(v_other, 9, 'chains_narrow') c), '{one}'::text[],
    'a worker that lacks a step takes what it serves');
  perform test.equal(array(select c.command from test.claim(v_worker, 9, 'chains_narrow') c), '{story}'::text[],
    'chains count for the limit');
  perform test.equal((select count(*) from bugle.queues_with_work(v_worker, '{chains_narrow}')), 0::bigint,
    'and are held back by it');

  v_ids := array(select pg_temp.chain('chains_ordered', 'k', null, null) from generate_series(1, 2));
  perform test.equal(array(select c.id from test.claim(v_worker, 9, 'chains_ordered') c), v_ids[1:1],
    'the first of an order key');
  perform test.complete(v_worker, (v_ids[1], 1));
  perform test.equal((select count(*) from bugle.queues_with_work(v_worker, '{chains_ordered}')), 1::bigint,
    'the next is there');
  perform test.equal(array(select c.id from test.claim(v_worker, 9, 'chains_ordered') c), v_ids[2:2], 'then the next');

  perform bugle.set_limits('chains_keys', p_max_running_per_key => 1);
  perform pg_temp.chain('chains_keys', null, k.key, null) from (values ('a'), ('a'), ('b')) k (key);
  perform test.equal((select count(*) from test.claim(v_worker, 9, 'chains_keys')), 2::bigint, 'one of each limit key');

  perform pg_temp.chain('chains_fair', null, null, 'A') from generate_series(1, 5);
  perform pg_temp.chain('chains_fair', null, null, 'B') from generate_series(1, 2);
  perform bugle.enqueue('one', p_queue => 'chains_fair', p_fair_key => 'C') from generate_series(1, 2);
  perform test.equal(
    (select count(distinct j.fair_key) from test.claim(v_worker, 3, 'chains_fair') c join bugle.jobs j on j.id = c.id),
      3::bigint, 'one of each fair key');

  perform bugle.set_command_limit('story', 1);
  perform test.equal((select count(*) from bugle.queues_with_work(v_worker, '{chains_fair}')), 1::bigint,
    'the limit of a chain is that of its name');
  perform test.equal(array(select distinct c.command from test.claim(v_worker, 9, 'chains_fair') c), '{one}'::text[],
    'which is reached');
end
$$;

rollback;
