-- With a publication (FOR ALL TABLES), Postgres rejects every UPDATE and DELETE that names a table without a key, even if the
-- table is empty, as these two always are.

alter table bugle.jobs_ended_by_hand add primary key (id);
alter table bugle.jobs_failed_by_hand add primary key (id);
