begin;

-- every advisory lock of the schema, for names that once made two of them one
do $$
declare
  v_names constant text[] := array['default', 'mail', 'all', 'queue mail', 'queue all', ' ', '0', 'bugle', 'bell',
    repeat('x', 100)];
  v_keys bigint[];
begin
  select array_agg(k.key) into v_keys
  from (
    select bugle.bell_key(n) from unnest(v_names) n
    union all select bugle.follower_key(n) from unnest(v_names) n
    union all select bugle.subscription_key(n) from unnest(v_names) n
    union all select bugle.subscription_key(null)
    union all select bugle.subscribers_key()
    union all select bugle.silence_key()
    union all select bugle.new_life_key() from generate_series(1, 10)) k (key);

  perform test.equal((select count(distinct k) from unnest(v_keys) k), cardinality(v_keys)::bigint, 'distinct keys');
  -- one that is added and not compared above is a mistake waiting to be made
  perform test.equal((
      select string_agg(p.proname, ' ' order by p.proname)
      from pg_proc p
      where p.pronamespace = 'bugle'::regnamespace
        and p.proname like '%\_key'
        and p.prorettype = 'bigint'::regtype),
    'bell_key follower_key new_life_key silence_key subscribers_key subscription_key', 'functions that make keys');
end
$$;

-- and they are those that are taken
do $$
begin
  insert into bugle.jobs (command, queue) values ('noop', 'literal');
  assert bugle.holds(bugle.bell_key('literal')), 'bugle.before_insert asks for another bell';
  assert bugle.bell_is_free('literal 2') and bugle.holds(bugle.bell_key('literal 2')),
    'bugle.bell_is_free asks for another bell';
  assert not bugle.is_heard() and bugle.holds(bugle.silence_key()), 'bugle.is_heard uses another lock';
  assert bugle.subscribe('literal') is not null and bugle.holds(bugle.subscribers_key())
    and bugle.holds(bugle.subscription_key('literal')),
    'bugle.subscribe uses other locks';
end
$$;

rollback;
