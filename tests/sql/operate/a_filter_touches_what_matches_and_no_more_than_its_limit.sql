begin;

insert into bugle.jobs (command, queue) select 'mail.' || (g % 2),
  case when g <= 6 then 'a' else 'b' end from generate_series(1, 10) g;

do $$
begin
  perform test.equal(bugle.pause_where(p_queue => 'a', p_command => 'mail.0'), 3::bigint, 'queue and command');
  perform test.equal(bugle.cancel_where(p_state => 'paused', p_limit => 2), 2::bigint, 'the limit');
  perform test.equal(bugle.cancel_where(p_queue => 'b', p_older_than => '1 hour'), 0::bigint, 'age');
  perform test.equal((select count(*) from bugle.jobs j where j.state = 'ready'), 7::bigint, 'untouched');
  perform test.equal(array(select bugle.jobs_matching('restart', p_since => '1 hour')),
    array(select j.id from bugle.jobs j where j.state = 'cancelled' order by j.id), 'only states the verb allows');
  perform test.equal((select c.jobs from bugle.count_matching('restart', p_since => '1 hour') c), 2::bigint,
    'the total');
  perform test.equal(bugle.pause_where(p_worker => 7), 0::bigint, 'the worker');
  perform test.refused('select bugle.pause_where(p_state => ''runing'')', 'JB001', '%not allowed from%runing%');
  perform test.refused('select bugle.pause_where(p_since => ''9999 years'')', 'JB001', '%p_since%calendar%');
  perform test.refused('select bugle.restart_where(p_ended_since => ''9999 years'')', 'JB001', '%p_ended_since%9999%');
  perform test.refused('select bugle.jobs_matching(''ressurect'')', 'JB001', '%not a verb%');
end
$$;

rollback;
