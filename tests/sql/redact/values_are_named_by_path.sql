begin;

update bugle.settings set redacted_paths = '{card.number, customers.*.phone, **.password, note}';

select test.equal(bugle.redacted(d.given::jsonb), d.shown::jsonb, d.given)
from (values
  ('{"card": {"number": 4111, "name": "Ada"}, "id": 9007199254740993}',
    '{"card": {"number": "[redacted]", "name": "Ada"}, "id": 9007199254740993}'),
  ('{"customers": {"a": {"phone": 1}, "b": {"phone": {"home": 2}}}}',
    '{"customers": {"a": {"phone": "[redacted]"}, "b": {"phone": "[redacted]"}}}'),
  ('{"card": [{"number": 1}, {"number": 2, "x": []}]}',
    '{"card": [{"number": "[redacted]"}, {"number": "[redacted]", "x": []}]}'),
  ('{"a": {"b": [{"password": "x"}]}, "password": null}',
    '{"a": {"b": [{"password": "[redacted]"}]}, "password": "[redacted]"}'),
  ('{"note": {"deep": 1}, "notes": 1, "x": {"note": 1}}', '{"note": "[redacted]", "notes": 1, "x": {"note": 1}}'),
  ('[1, "a", null]', '[1, "a", null]'),
  ('"text"', '"text"'),
  ('{}', '{}')) d (given, shown);
select test.equal(bugle.redacted(null), null, 'nothing');

-- as deep as it may be nested
select test.equal(
  bugle.redacted((repeat('{"a":', 3000) || '{"password": "secret"}' || repeat('}', 3000))::jsonb)::text like '%secret%',
  false, 'deep');

select test.equal(array_agg(bugle.is_redacted(p.path::text[]) order by p.path), '{f,t,t,t,f,t}', 'paths')
from unnest(array['{card,number}', '{card,name}', '{customers,7,phone}', '{note,deep}', '{notes}', '{x,y,password}'])
  p (path);

select test.refused(format('update bugle.settings set redacted_paths = %L', p.path), 'JB001')
from unnest(array['{""}', '{a..b}', '{.a}', '{**}', '{null}']) p (path);

update bugle.settings set redacted_paths = '{*}';
select test.equal(bugle.redacted('{"a": 1, "b": {"c": 2}}'), '{"a": "[redacted]", "b": "[redacted]"}', 'everything');

rollback;
