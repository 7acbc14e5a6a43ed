-- A claim tells where each row lies, so that its end finds it there without a look into an index, and in which order to start.
alter type bugle.claimed_job
  add attribute address tid,
  add attribute turn integer;
