-- Schedules whose jobs are chains: the steps are said in the schedule, as they are in a job.

alter table bugle.schedules add column steps text[];
