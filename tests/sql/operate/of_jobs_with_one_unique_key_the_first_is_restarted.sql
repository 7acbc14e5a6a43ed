begin;

do $$
declare
  v_first bigint;
  v_second bigint;
  v_third bigint;
  v_answers text;
begin
  v_first := bugle.enqueue('noop', p_unique_key => 'k');
  perform bugle.cancel(v_first);
  v_second := bugle.enqueue('noop', p_unique_key => 'k');
  perform bugle.cancel(v_second);
  v_third := bugle.enqueue('noop', p_unique_key => 'another');
  perform bugle.cancel(v_third);

  select string_agg(concat_ws(' ', o.id - v_first, o.done, o.state,
    replace(o.reason, v_first::text, 'the first')), '; ')
  into v_answers
  from bugle.restart(array[v_third, v_second, v_first, v_second]) o;

  perform test.equal(v_answers, format('0 t ready; %s f cancelled cannot restart job %s: job the first with the same '
    'unique_key is live; %s t ready', v_second - v_first, v_second, v_third - v_first), 'the answers, in order of ids');
  perform test.equal((select string_agg(j.id::text, ' ' order by j.id) from bugle.jobs_live j),
    concat_ws(' ', v_first, v_third), 'the live jobs');
  perform test.equal((select count(*) from bugle.changes c where c.verb = 'restart'), 2::bigint, 'the changes');
end
$$;

rollback;
