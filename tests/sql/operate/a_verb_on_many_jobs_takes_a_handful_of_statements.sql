begin;

-- the calls of the functions that this transaction has called, without triggers
create function pg_temp.most_calls() returns bigint
language sql volatile
as $$
  select max(pg_stat_get_xact_function_calls(p.oid))
  from pg_proc p
  where p.pronamespace = 'bugle'::regnamespace
    and p.prorettype <> 'trigger'::regtype
$$;

insert into bugle.jobs (command, unique_key) select 'noop', 'key ' || i from generate_series(1, 500) i;
set local track_functions = 'all';

do $$
declare
  v_ids constant bigint[] := array(select j.id from bugle.jobs j);
  v_verb text;
begin
  foreach v_verb in array array['pause', 'resume', 'cancel', 'restart', 'remove'] loop
    execute format('select from bugle.%I($1)', v_verb) using v_ids;
    perform test.equal((select count(*) from bugle.changes c where c.verb = v_verb), 500::bigint,
      format('the changes of %s', v_verb));
  end loop;
  perform test.equal(pg_temp.most_calls() < 100, true,
    format('no function is called for each job: %s calls', pg_temp.most_calls()));
end
$$;

rollback;
