begin;

do $$
declare
  v_worker constant bigint := test.register('{noop}', '{armed busy,armed idle,armed foreign,armed late}');
  v_answer text;
begin
  perform bugle.enqueue('noop', p_queue => 'armed busy');
  perform bugle.enqueue('unserved', p_queue => 'armed foreign');
  perform bugle.enqueue('noop', p_queue => 'armed late', p_deadline => now() + interval '1 day');
  update bugle.jobs_live j set deadline = now() where j.queue = 'armed late';

  select string_agg(concat_ws(' ', a.queue, a.mode, a.has_work), ', ' order by a.queue) into v_answer
  from bugle.arm(v_worker, array['armed busy', 'armed idle', 'armed foreign', 'armed late']) a;

  perform test.equal(v_answer,
    'armed busy sentinel t, armed foreign sentinel f, armed idle sentinel f, armed late sentinel f', 'arm');
  assert bugle.holds(bugle.bell_key('armed idle')), 'a sentinel holds the bell';
  perform bugle.stand_down(array['armed busy', 'armed idle'], array['sentinel', 'sentinel']);
  assert not bugle.holds(bugle.bell_key('armed idle')), 'standing down lets go of it';
end
$$;

rollback;
