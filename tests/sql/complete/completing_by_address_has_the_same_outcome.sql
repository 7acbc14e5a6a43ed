begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_other constant bigint := test.register();
  v_nonce constant uuid := test.nonce(v_worker);
  v_jobs bugle.claimed_job[];
  v_foreign bugle.claimed_job;
  v_verdicts text;
  v_ids bigint[];
  v_claims bigint[];
  v_addresses tid[];
begin
  perform bugle.enqueue('noop') from generate_series(1, 7);
  v_jobs := array(select c from test.claim(v_worker, 6) c);
  v_foreign := (select c from test.claim(v_other) c);
  v_ids := array(select (j).id from unnest(v_jobs) j);
  v_claims := array(select (j).claim from unnest(v_jobs) j);
  v_addresses := array(select (j).address from unnest(v_jobs) j);
  perform test.equal(cardinality(array_remove(v_addresses, null)), 6, 'every address is told');

  -- where they were
  perform test.equal((
      select count(*) from bugle.complete_at(v_worker, v_nonce, v_ids[1:2], v_claims[1:2], array['"one"'::jsonb, null],
        v_addresses[1:2])),
    0::bigint, 'no verdicts');
  perform test.equal((test.job(v_ids[1])).state, 'completed', 'the first');
  perform test.equal((test.job(v_ids[1])).result, '"one"'::jsonb, 'its result');
  perform test.equal((test.job(v_ids[2])).state, 'completed', 'the second');
  assert not exists (select from bugle.jobs_live j where j.id = any (v_ids[1:2])), 'they have left the live table';

  -- ended before, moved since, another's, unknown; each is judged as by bugle.complete
  perform bugle.report_progress(v_worker, v_nonce, (v_ids[3], v_claims[3])::bugle.held_job, 50, 'half');
  select string_agg(concat_ws(' ', v.id, v.verdict), ', ' order by v.id) into v_verdicts
  from bugle.complete_at(v_worker, v_nonce,
    v_ids[2:4] || v_foreign.id || 999999999::bigint, v_claims[2:4] || v_foreign.claim || 1::bigint, '{}',
    v_addresses[2:4] || v_foreign.address || v_foreign.address) v;
  perform test.equal(v_verdicts, format('%s repeated, %s fenced, 999999999 gone', v_ids[2], v_foreign.id), 'verdicts');
  perform test.equal((test.job(v_ids[3])).state, 'completed', 'one that has moved');
  perform test.equal((test.job(v_ids[3])).progress_note, 'half', 'with what it wrote');
  perform test.equal((test.job(v_ids[4])).state, 'completed', 'one beside it');
  perform test.equal((test.job(v_foreign.id)).state, 'running', 'another worker''s');

  -- addresses that belong to no id
  perform bugle.complete_at(v_worker, v_nonce, v_ids[5:5], v_claims[5:5], '{}',
    array[v_addresses[5], v_foreign.address]);
  perform test.equal((test.job(v_ids[5])).state, 'completed', 'the fifth');
  perform test.equal((test.job(v_foreign.id)).state, 'running', 'whose address came along');
  perform bugle.complete_at(v_worker, v_nonce, v_ids[6:6] || v_ids[6:6], v_claims[6:6] || v_claims[6:6], '{}',
    v_addresses[6:6] || v_addresses[6:6] || v_foreign.address);
  perform test.equal((select count(*) from bugle.jobs j where j.id = v_ids[6] and j.state = 'completed'), 1::bigint,
    'one that was named twice');
  perform test.equal((test.job(v_foreign.id)).state, 'running', 'whose address stood for the second time');
  perform bugle.complete_at(v_worker, v_nonce, '{}', '{}', '{}', array[v_foreign.address]);
  perform test.equal((test.job(v_foreign.id)).state, 'running', 'whose address came alone');
  perform test.equal((select count(*) from bugle.complete_at(v_worker, v_nonce, '{}', '{}', '{}', '{}')), 0::bigint,
    'an empty batch');
  perform test.refused(format('select bugle.complete_at(%s, gen_random_uuid(), array[%s]::bigint[], '
    'array[1]::bigint[], ''{}'', array[%L]::tid[])',
    v_other, v_foreign.id, v_foreign.address), 'JB010');
end
$$;

rollback;
