begin;

update bugle.history_days d set retired_at = now() where d.kind = 'ended' and d.day = (now() at time zone 'utc')::date;
select bugle.add_day('ended', (now() at time zone 'utc')::date - 1);

select test.equal(bugle.history_day('ended'), (now() at time zone 'utc')::date - 1, 'the newest day that is open');

rollback;
