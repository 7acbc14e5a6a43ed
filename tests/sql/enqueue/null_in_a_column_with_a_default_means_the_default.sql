begin;

set local role bugle_enqueuer;
insert into bugle.jobs (command, payload, queue, priority, run_at) values
  ('all', null, null, null, null), ('payload', null, 'q', 1, now()), ('queue', '1', null, 1, now()),
  ('priority', '1', 'q', null, now()), ('run_at', '1', 'q', 1, null);
insert into bugle.jobs (command, queue, priority, headers, unique_key) values ('keyed', 'q', null, '{}', 'k');
reset role;
select test.equal(
  string_agg(concat_ws(' ', j.command, j.payload, j.queue, j.priority, j.run_at = now(), j.state), ', ' order by j.id),
  'all {} default 0 t ready, payload {} q 1 t ready, queue 1 default 1 t ready, priority 1 q 0 t ready, run_at 1 q 1 t '
    'ready, '
  'keyed {} q 0 t ready', 'each as if it had been left out')
from bugle.jobs j;

-- the engine's columns, which the owner alone can write
insert into bugle.jobs (command, attempt, crashes, claim, created_at, updated_at)
  values ('owner', null, null, null, null, null);
select test.equal(concat_ws(' ', j.attempt, j.crashes, j.claim, j.created_at = now(), j.updated_at = now()),
  '0 0 0 t t', 'the owner''s too')
from bugle.jobs j where j.command = 'owner';

-- a template fills in what was left out
insert into bugle.commands (name, queue, priority, delay) values ('templated', 'slow', 7, '1 hour');
insert into bugle.jobs (command, queue, priority, run_at) values ('templated', null, null, null);
select test.equal(concat_ws(' ', j.queue, j.priority, j.state), 'slow 7 scheduled', 'as the template says')
from bugle.jobs j where j.command = 'templated';

select test.refused('insert into bugle.jobs (command) values (null)', 'JB001', 'column "command" must not be null');
select test.refused('insert into bugle.jobs (queue) values (''q'')', 'JB001', 'column "command" must not be null');

rollback;
