begin;

update bugle.settings set lost_grace = '1 second';

do $$
declare
  v_keeper constant bigint := test.register();
  v_gone constant bigint := test.register();
  v_left constant bugle.held_job := test.running(v_gone);
  v_pulse record;
begin
  perform bugle.run_maintenance(v_keeper, false);
  perform test.dies(v_gone);
  perform test.equal(bugle.note_lost(v_keeper), 1, 'one is gone, and has its grace');
  perform test.clock_steps_back('1 hour');

  select * into v_pulse from bugle.run_maintenance(v_keeper, false);

  assert v_pulse.troubles[1] like 'clock: the clock of the database was set back by %', v_pulse.troubles::text;
  perform test.equal(cardinality(v_pulse.troubles), 1, 'troubles');
  assert not exists (
    select from bugle.registrations r where r.seen_at > clock_timestamp() or r.lost_at > clock_timestamp()),
      'nothing was seen or lost in the future';
  perform test.equal((select array_agg(w.id) from bugle.workers w where w.state = 'lost'), array[v_gone],
    'nobody else is lost');
  assert v_pulse.upkeep, 'history is looked after again';
  assert (select c.stepped_by between interval '59 minutes' and interval '1 hour' and c.ahead <= interval '0'
    from bugle.clock() c), 'it is noted';
  perform test.equal((select c.troubles from bugle.run_maintenance(v_keeper, false) c), '{}'::text[], 'told once');

  -- a grace later
  update bugle.registrations set lost_at = lost_at - interval '1 minute' where id = v_gone;
  perform bugle.run_maintenance(v_keeper, false);
  perform test.equal((test.job(v_left.id)).state, 'ready', 'what it held is ready again');
end
$$;

rollback;
