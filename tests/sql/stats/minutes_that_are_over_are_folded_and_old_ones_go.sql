begin;

do $$
declare
  v_none constant bigint[] := array_fill(0::bigint, array[21]);
begin
  insert into bugle.minutes (minute, queue, command, worker, completed, failed, others, run_seconds, wait_seconds, run,
    wait)
  select date_trunc('minute', now()) - make_interval(mins => a.ago), 'default', 'noop', w.id, 10, 1, 0, 1, 1, v_none,
    v_none
  from generate_series(1, 3) w (id)
    cross join unnest(array[0, 5, 60 * 24 * 9]) a (ago);

  while bugle.fold_minutes() + bugle.prune() > 0 loop
  end loop;

  perform test.equal((select count(*) from bugle.minutes), 4::bigint, 'three of now, one of before, none of last week');
  perform test.equal((select m.completed from bugle.minutes m where m.worker = 0), 30::bigint, 'the sum');
  perform test.equal((select sum(s.completed) from bugle.minute_stats s), 60::numeric, 'nothing is lost');
end
$$;

rollback;
