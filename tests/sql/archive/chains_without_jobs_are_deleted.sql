begin;

-- others enqueue chains at the same time
lock table bugle.chains in share row exclusive mode;

do $$
declare
  v_live constant bigint := test.chain();
begin
  perform test.chain('{a}', p_command => 'gone');
  perform bugle.remove(v_live + 1);
  insert into bugle.chains (command, steps, last_step) values ('chain', '{c}', 'c');
  perform test.equal(bugle.prune_chains(), 0, 'a few are not worth it');
  perform test.equal(bugle.prune_chains(0), 2, 'what is gone, and what is there twice');
  perform test.equal((select string_agg(c.steps::text, ' ' order by c.id) from bugle.chains c), '{a,b,c} {b,c} {c}',
    'what is left');

  perform bugle.cancel(v_live);
  perform bugle.prune_chains(0);
  perform test.equal((select count(*) from bugle.chains), 0::bigint, 'nothing is live');
  perform bugle.restart(v_live);
  perform test.equal((select count(*) from bugle.chains), 3::bigint, 'a restarted chain is known again');
end
$$;

rollback;
