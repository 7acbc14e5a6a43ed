begin;

do $$
begin
  perform test.refused($q$select bugle.next_slot('* * * * *', null, now())$q$, 'JB005');
  perform test.refused($q$select bugle.next_slot('* * * * *', 'UTC', null)$q$, 'JB005');
  perform test.refused($q$select bugle.next_slot('* * * * *', 'UTC', '-infinity')$q$, 'JB005');
  perform test.refused($q$select bugle.next_slot('* * * * *', 'UTC', '4713-01-02 00:00:00+00 BC')$q$, 'JB005');
  perform test.refused($q$select bugle.next_slot(null, 'UTC', now())$q$, 'JB005');
  perform test.refused($q$select * from bugle.schedule_preview(null)$q$, 'JB005');
  perform test.refused($q$select * from bugle.schedule_preview('* * * * *', p_after => '-infinity')$q$, 'JB005');
end
$$;

rollback;
