-- Enqueue in the transaction of the business: both are there, or neither.
--
--   psql "$DATABASE_URL" -f enqueue.sql
\set ON_ERROR_STOP on
\set QUIET on
set client_min_messages = warning;

create table if not exists orders (id bigint generated always as identity, item text not null);

-- the order and the job are committed together
begin;
insert into orders (item) values ('tea')
returning id as "order" \gset
insert into bugle.jobs (command, payload) values ('hello', jsonb_build_object('name', 'Ada', 'order', :order))
returning id as job \gset
commit;
\echo order :order and job :job are committed

-- neither the order nor the job is there
begin;
insert into orders (item) values ('coffee')
returning id as "order" \gset
insert into bugle.jobs (command, payload) values ('hello', jsonb_build_object('name', 'Bob', 'order', :order))
returning id as undone \gset
rollback;

select exists (select from bugle.jobs where id = :undone) as is_there \gset
\if :is_there
  do $$ begin raise 'the job is there, though its transaction was rolled back'; end $$;
\endif
\echo order :order was rolled back, and job :undone with it

-- wait until the job has ended: it takes a worker that serves the command hello, such as that of "bugle dev"
select set_config('example.job', :'job', false) \gset
do $$
begin
  for try in 1 .. 600 loop
    if exists (
      select
      from bugle.job(current_setting('example.job')::bigint) j
      where j.state in ('completed', 'failed', 'cancelled'))
    then
      return;
    end if;
    perform pg_sleep(0.05);
  end loop;
  raise 'the job has not ended after 30 seconds'
    using hint = 'Does a worker serve the command hello? select * from bugle.unserved';
end
$$;

select state, result from bugle.job(:job) \gset
\echo job :job is :state: :result
select :'state' <> 'completed' as is_wrong \gset
\if :is_wrong
  do $$ begin raise 'the job is not completed'; end $$;
\endif
