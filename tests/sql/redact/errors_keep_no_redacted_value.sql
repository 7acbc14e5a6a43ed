begin;

update bugle.settings set redacted_paths = '{card}';
do $$
declare
  v_worker constant bigint := test.register();
  v_id constant bigint := bugle.enqueue('noop',
    '{"card": {"number": "4111-1111", "cvc": 12}, "order": "order 17"}', p_max_attempts => 2);
begin
  perform test.fail(v_worker, test.running(v_worker, v_id), 'card 4111-1111 (12) was declined for order 17');
end
$$;

select test.equal(j.last_error, 'card [redacted] (12) was declined for order 17', 'of the job')
from bugle.jobs j;
select test.equal(a.error, 'card [redacted] (12) was declined for order 17', 'of the attempt')
from bugle.attempts a;
select test.equal(count(*), 0::bigint, 'of the timeline')
from bugle.jobs j
  cross join bugle.timeline(j.id) t
where t.message like '%4111%';

rollback;
