begin;

do $$
declare
  v_worker constant bigint := test.register('{a,b,c}');
  v_held constant bugle.held_job := test.running(v_worker, test.chain());
begin
  perform test.start_step(v_worker, v_held);
  perform test.finish_step(v_worker, v_held, 1, '[1, 2]');
  perform test.finish_step(v_worker, v_held, 2, 'null');
  perform test.equal((test.job(v_held.id)).context, '{"a": [1, 2]}'::jsonb, 'the context');
  perform test.equal((select s.output from bugle.steps s where s.job = v_held.id and s.position = 1), '[1, 2]'::jsonb,
    'the output as it was');
end
$$;

rollback;
