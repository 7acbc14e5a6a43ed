-- A claim writes its job's row anew, and with it an entry beside the old one in the index by id. Pages that are half full have
-- room for it; full ones were split, or searched for dead entries, by every claim of a backlog.
alter index bugle.jobs_live_pkey set (fillfactor = 50);
