begin;

create table test.written (job bigint);

do $$
declare
  v_worker constant bigint := test.register();
  v_nonce constant uuid := test.nonce(v_worker);
  v_jobs bugle.claimed_job[];
  v_ids bigint[];
  v_claims bigint[];
  v_addresses tid[];
begin
  perform bugle.enqueue('noop') from generate_series(1, 3);
  v_jobs := array(select c from test.claim(v_worker, 3) c);
  select array_agg(j.id), array_agg(j.claim), array_agg(j.address) into v_ids, v_claims, v_addresses
  from unnest(v_jobs) j;

  begin
    insert into test.written select unnest(v_ids);
    perform bugle.complete_all(v_worker, v_nonce, v_ids, array[v_claims[1], v_claims[2] + 1, v_claims[3]], '{}',
      v_addresses);
    raise 'it was accepted';
  exception
    when sqlstate 'JB031' then
      perform test.equal(sqlerrm, format('job %s is no longer held under claim %s: fenced', v_ids[2], v_claims[2] + 1),
        'the message');
  end;
  perform test.equal((select count(*) from test.written), 0::bigint, 'nothing is written');
  perform test.equal((select count(*) from bugle.jobs j where j.state = 'running'), 3::bigint, 'none is completed');

  insert into test.written select unnest(v_ids);
  perform test.equal((
      select count(*)
      from bugle.complete_all(v_worker, v_nonce, v_ids, v_claims, array['"one"'::jsonb, null], v_addresses)),
    0::bigint, 'no verdict');
  perform test.equal((
      select string_agg(concat_ws(' ', j.state, j.result), ', ' order by j.id) from bugle.jobs j),
    'completed "one", completed, completed', 'all are completed');
end
$$;

rollback;
