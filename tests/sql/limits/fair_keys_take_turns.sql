begin;

create function pg_temp.starts(p_worker bigint, p_slots integer) returns text language sql as $$
  select string_agg(coalesce(j.fair_key, '-'), '' order by c.place)
  from (select c.*, row_number() over () as place from test.claim(p_worker, p_slots, 'fair') c) c
    join bugle.jobs j on j.id = c.id
$$;

do $$
declare
  v_worker constant bigint := test.register('{noop,other}', '{fair}');
  v_starts text := '';
begin
  insert into bugle.jobs (command, queue, fair_key) select 'noop', 'fair', 'A' from generate_series(1, 2000);
  perform test.equal(pg_temp.starts(v_worker, 3), 'AAA', 'alone it has every turn');
  insert into bugle.jobs (command, queue, fair_key) select 'noop', 'fair', 'B' from generate_series(1, 10);
  insert into bugle.jobs (command, queue) select 'other', 'fair' from generate_series(1, 2);

  perform test.equal(pg_temp.starts(v_worker, 7), 'B-AB-AB',
    'one each, beginning behind the last; those without a key are one of them');
  perform test.equal(pg_temp.starts(v_worker, 1) || pg_temp.starts(v_worker, 1) || pg_temp.starts(v_worker, 1), 'ABA',
    'also one by one');
  perform test.equal(pg_temp.starts(v_worker, 20), 'BABABABABABAAAAAAAAA', 'and in large claims');

  -- within a key by priority, then by id
  insert into bugle.jobs (command, queue, fair_key, priority) values ('noop', 'fair', 'C', 5),
    ('other', 'fair', 'C', -5), ('noop', 'fair', 'C', 0);
  perform test.equal(
    array(select j.priority from test.claim(v_worker, 20, 'fair') c join bugle.jobs j on j.id = c.id
      where j.fair_key = 'C' order by j.started_at),
    '{-5,0,5}'::integer[], 'urgent ones first');
end
$$;

rollback;
