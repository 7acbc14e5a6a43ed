begin;

do $$
declare
  v_worker constant bigint := test.register();
  v_jobs bugle.claimed_job[];
begin
  update bugle.settings set keep_completed = false;
  perform bugle.enqueue('noop') from generate_series(1, 2);
  v_jobs := array(select c from test.claim(v_worker, 2) c);

  perform bugle.complete_at(v_worker, test.nonce(v_worker), array(select (j).id from unnest(v_jobs) j),
    array(select (j).claim from unnest(v_jobs) j), '{}', array(select (j).address from unnest(v_jobs) j));

  perform test.equal((select count(*) from bugle.jobs j where j.id = any (array(select (j).id from unnest(v_jobs) j))),
    0::bigint, 'left');
end
$$;

rollback;
