begin;

insert into bugle.commands (name, required_keys) values ('picky', '{something}');

do $$
declare
  v_worker constant bigint := test.register();
  v_held bugle.held_job := test.running(v_worker, bugle.enqueue('noop', p_on_success => 'picky'));
  v_other bugle.held_job := test.running(v_worker, bugle.enqueue('noop', p_on_success => 'thank'));
begin
  perform bugle.complete(v_worker, test.nonce(v_worker),
    array[(v_held.id, v_held.claim, null), (v_other.id, v_other.claim, null)]::bugle.finished_job[]);
  perform test.equal((test.job(v_held.id)).state, 'completed', 'it has ended');
  perform test.equal((select count(*) from bugle.jobs_live j where j.command = 'thank'), 1::bigint,
    'others are followed');
  perform test.equal((select c.note from bugle.changes c where c.job = v_held.id and c.verb = 'follow_up'),
    'column "payload" lacks keys that the command ''picky'' requires: ''something''', 'and the refusal is noted');

  update bugle.settings set max_payload_bytes = 8192;
  v_held := test.running(v_worker, bugle.enqueue('noop', p_on_success => 'big'));
  perform test.complete(v_worker, v_held, to_jsonb(repeat('x', 10000)));
  perform test.equal((select j.payload ->> 'result_left_out' from bugle.jobs_live j where j.command = 'big'), 'true',
    'a result that does not fit is left out');
end
$$;

rollback;
