begin;

insert into bugle.jobs (command, queue) select 'mail.' || (g % 2),
  case when g <= 6 then 'a' else 'b' end from generate_series(1, 10) g;

do $$
begin
  perform test.equal(bugle.pause_where(p_queue => 'a', p_command => 'mail.0'), 3::bigint, 'queue and command');
  perform test.equal(bugle.cancel_where(p_state_is => 'paused', p_limit => 2), 2::bigint, 'the limit');
  perform test.equal(bugle.cancel_where(p_queue => 'b', p_older_than => '1 hour'), 0::bigint, 'age');
  perform test.equal((select count(*) from bugle.jobs j where j.state = 'ready'), 7::bigint, 'untouched');
end
$$;

rollback;
