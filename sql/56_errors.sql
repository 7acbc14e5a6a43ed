-- errors: what they say, and what those of one kind have in common. For lists, filters and statistics.

-- Tracebacks indent the frames, in every language, and end with what went wrong. "the program exited with code 1" comes
-- first, and says nothing if the program said something itself.
create or replace function bugle.error_line(p_error text) returns text
language sql immutable parallel safe
return left(coalesce((
  select rtrim(l.line)
  from string_to_table(translate(p_error, E'\r', ''), E'\n') with ordinality l (line, number)
  where l.line !~ '^([[:space:]]|[{}]|$|Node[.]js v)'
  order by l.number desc
  limit 1), btrim(p_error, E' \t\r\n')), 300);
comment on function bugle.error_line is
  'The line of an error that says what went wrong: the last one that is not indented.';

-- The parts of a message that differ from one failure to the next do not tell what kind of error it is.
create or replace function bugle.fingerprint(p_error text) returns text
language sql immutable parallel safe
return regexp_replace(regexp_replace(regexp_replace(
  bugle.error_line(p_error),
  E'[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|\\m[0-9a-fA-F]{16,}\\M', '#', 'g'),
  '"[^"]*"|''[^'']*''', '"…"', 'g'),
  '[0-9]+([.,:][0-9]+)*', '#', 'g');
comment on function bugle.fingerprint is
  'What two errors of the same kind have in common: bugle.error_line without numbers, ids and quoted texts.';
