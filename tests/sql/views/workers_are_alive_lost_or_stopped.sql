begin;

do $$
declare
  v_alive constant bigint := test.register();
  v_lost constant bigint := test.register();
  v_stopped constant bigint := test.register();
begin
  perform test.dies(v_lost);
  perform bugle.note_lost(0);
  perform bugle.detach(v_stopped, test.nonce(v_stopped));

  perform test.equal((select string_agg(w.state, ' ' order by w.id) from bugle.workers w), 'alive lost stopped',
    'states');
  perform test.equal((select concat_ws(' ', w.name, w.host, w.process_id, w.version, w.queues, w.slots, w.commands)
    from bugle.workers w where w.id = v_alive),
    'tester host-1 42 0.1.0 {default} {100} {noop}', 'what it registered');
end
$$;

rollback;
