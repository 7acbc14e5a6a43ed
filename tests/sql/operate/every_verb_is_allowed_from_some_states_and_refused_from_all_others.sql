begin;

-- every state x every verb, against the table of the documents
do $$
declare
  v_worker constant bigint := test.register();
  v_state text;
  v_verb text;
  v_job bigint;
  v_answer bugle.operated;
  v_expected text;
  v_before jsonb;
begin
  foreach v_state in array array['scheduled', 'ready', 'running', 'retrying', 'paused', 'waiting', 'completed',
    'failed', 'cancelled'] loop
    foreach v_verb in array array['cancel', 'pause', 'resume', 'restart', 'remove', 'set_priority'] loop
      v_job := test.job_in(v_state, v_worker);
      v_before := to_jsonb(test.job(v_job));
      execute format('select o.* from bugle.%I(array[$1]%s) o', v_verb,
        case v_verb when 'set_priority' then ', 7' else '' end)
        into v_answer using v_job;
      v_expected := case v_verb
        when 'cancel' then case when v_state not in ('completed', 'failed', 'cancelled') then 'cancelled' end
        when 'pause' then case when v_state in ('ready', 'scheduled', 'retrying', 'waiting') then 'paused' end
        when 'resume' then case when v_state = 'paused' then 'ready' end
        when 'restart' then case when v_state in ('failed', 'cancelled') then 'ready' end
        when 'remove' then case when v_state <> 'running' then 'removed' end
        when 'set_priority' then case when v_state not in ('running', 'completed', 'failed', 'cancelled')
          then v_state end
      end;
      if v_expected is null then
        perform test.equal(v_answer.done, false, format('%s of a %s job', v_verb, v_state));
        perform test.equal(v_answer.state, v_state, format('the answer to %s of a %s job', v_verb, v_state));
        perform test.equal(to_jsonb(test.job(v_job)), v_before,
          format('a refused %s of a %s job changes nothing', v_verb, v_state));
      else
        perform test.equal(v_answer.done, true, format('%s of a %s job', v_verb, v_state));
        perform test.equal(coalesce((test.job(v_job)).state, 'removed'), v_expected,
          format('%s of a %s job', v_verb, v_state));
        perform test.equal(
          (select concat_ws(' ', c.verb, c.from_state, c.to_state, c.who = session_user) from bugle.changes c
            where c.job = v_job order by c.id desc limit 1),
          concat_ws(' ', v_verb, v_state, v_expected, true), format('the change of %s of a %s job', v_verb, v_state));
      end if;
    end loop;
  end loop;
end
$$;

rollback;
