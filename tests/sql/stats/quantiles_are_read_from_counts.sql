begin;

select test.equal(bugle.quantile(array_fill(0::bigint, array[21]), 0.5), null::double precision, 'of nothing');
select test.equal(bugle.quantile(array[0, 10] || array_fill(0::bigint, array[19]), 0.5), 0.0015::double precision,
  'half way through its span');
select test.equal(bugle.quantile(array_fill(0::bigint, array[20]) || array[7::bigint], 0.5), 3600::double precision,
  'beyond the last bound');
select test.equal(bugle.quantile(array[5, 0, 0, 5] || array_fill(0::bigint, array[17]), 0.5), 0.001::double precision,
  'at the end of a span');
select test.equal(bugle.quantile(array[5, 0, 0, 5] || array_fill(0::bigint, array[17]), 1), 0.01::double precision,
  'the largest');

rollback;
