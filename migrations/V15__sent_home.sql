-- A worker that was sent home before it listened must hear of it all the same.

alter table bugle.registrations add column drained_at timestamptz;
