-- What the keeper noted about the database's clock: when it was last found to have stepped back, and by how much.

alter table bugle.keeping
  add column stepped_at timestamptz,
  add column stepped_by interval;
