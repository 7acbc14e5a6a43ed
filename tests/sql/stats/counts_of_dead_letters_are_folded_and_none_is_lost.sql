begin;

do $$
begin
  delete from bugle.dead_letter_counts;
  insert into bugle.dead_letter_counts (queue, reason, jobs)
  values ('default', 'timeout', 1), ('default', 'timeout', 2), ('default', 'deadline', 4), ('mail', 'timeout', 8);

  perform test.equal(bugle.fold_dead_letters(), 2, 'two rows of one queue and reason');

  perform test.equal(
    (select string_agg(concat_ws(' ', c.queue, c.reason, c.jobs), ', ' order by c.jobs)
      from bugle.dead_letter_counts c),
    'default timeout 3, default deadline 4, mail timeout 8', 'one row each, with the sum');
  perform test.equal(bugle.fold_dead_letters(), 0, 'nothing is left to merge');
  insert into bugle.dead_letter_counts (queue, reason, jobs) select 'mail', 'timeout', 1 from generate_series(1, 9);
  perform test.equal(bugle.fold_dead_letters(0), 0, 'no more rows than it is told to look at');
end
$$;

rollback;
