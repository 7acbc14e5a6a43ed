begin;

insert into bugle.commands (name, unique_payload, unique_for, unique_mode) values ('index', true, '1 hour', 'replace');

do $$
declare
  v_worker constant bigint := test.register('{index}');
  v_id constant bigint := bugle.enqueue('index', '{"a": 1}');
  v_other bigint;
begin
  perform test.equal(bugle.enqueue('index', '{"a": 1}'), v_id, 'while it is live');
  perform test.complete(v_worker, test.running(v_worker, v_id));
  perform test.equal((test.job(v_id)).state, 'completed', 'it has ended');
  perform test.equal((select row(e.*)::text from bugle.enqueue_once('index', '{"a": 1}') e), format('(%s,f)', v_id),
    'and is still the one');
  perform test.refused($sql$insert into bugle.jobs (command, payload) values ('index', '{"a": 1}')$sql$, '23505');
  v_other := bugle.enqueue('index', '{"a": 2}');
  assert v_other > v_id, 'another payload is another job';

  update bugle.idempotency_keys k set expires_at = now() where k.job = v_id;
  perform bugle.prune();
  perform test.equal(bugle.enqueue('index', '{"a": 1}'), v_id, 'the time counts from when the job ended');
  update bugle.commands set unique_for = '1 microsecond';
  update bugle.jobs set finished_at = finished_at - interval '1 microsecond' where id = v_id;
  v_other := bugle.enqueue('index', '{"a": 1}');
  assert v_other > v_id, 'the time is over';
  perform test.equal((select k.expires_at from bugle.idempotency_keys k where k.job = v_other),
    now() + interval '1 microsecond', 'it starts again');
  update bugle.idempotency_keys k set expires_at = now() where k.job = v_other;
  perform bugle.prune();
  perform test.equal((select count(*) from bugle.idempotency_keys k where k.job = v_other), 1::bigint,
    'the key of a live job is kept');
  perform bugle.cancel(v_other);
  perform bugle.remove(v_other);
  perform bugle.prune();
  perform test.equal((select count(*) from bugle.idempotency_keys k where k.job = v_other), 0::bigint,
    'the key of a job that was removed is not');
end
$$;

select test.refused($sql$insert into bugle.commands (name, unique_for) values ('x', '1 hour')$sql$, 'JB001');

rollback;
