#!/bin/bash
# What this cluster can do at all, measured with pgbench and a psycopg script. One JSON line per figure, appended to results.jsonl.
set -u
B=${PGBIN:-/usr/lib/postgresql/15/bin}; P=$(cd "$(dirname "$0")" && pwd)
export PGHOST=$P/socket PGPORT=54329 PGUSER=postgres
RES=${RESULTS:-$P/results.jsonl}; T=${T:-10}
cd $P; mkdir -p floor
psql="$B/psql -qAt -d floor"
$B/psql -qAt -d postgres -c "drop database if exists floor with (force)" -c "create database floor" -c checkpoint 2>/dev/null
emit() { # workload n seconds per_s p50 p95 p99 notes
  python3 - "$@" <<'PY' | tee -a $RES
import json,sys,os,time
w,n,s,r,a,b,c,notes=sys.argv[1:9]
f=lambda x: None if x in("","null") else float(x)
print(json.dumps({"peer":"floor","version":"PostgreSQL 15","workload":w,"n":int(float(n)) if n else None,"seconds":f(s),"per_s":f(r),"p50_ms":f(a),"p95_ms":f(b),"p99_ms":f(c),"notes":{"how":notes,"load1":round(os.getloadavg()[0],2),"at":time.strftime("%Y-%m-%dT%H:%M:%SZ",time.gmtime())}}))
PY
}
tps() { sed -n 's/^tps = \([0-9.]*\).*/\1/p'; }

# 1 single-row INSERT commits/s
$psql -c "create table ins(id bigserial primary key, payload jsonb not null)"
echo "insert into ins(payload) values ('{\"k\":\"noop\",\"i\":1}');" > floor/insert.sql
for c in 1 4; do
  r=$($B/pgbench -n -M prepared -c $c -j 2 -T $T -f floor/insert.sql floor 2>/dev/null | tps)
  emit insert_commit_${c}c "" $T $r "" "" "" "pgbench -M prepared -c $c, one INSERT per transaction, 2-column table with primary key"
done

# 1b the same with pg_notify in the transaction (commits that notify serialise on one lock), without and with one listener
echo "insert into ins(payload) values ('{\"k\":\"noop\",\"i\":1}') \; select pg_notify('jobs','');" > floor/insert_notify.sql
r=$($B/pgbench -n -M simple -c 4 -j 2 -T $T -f floor/insert_notify.sql floor 2>/dev/null | tps)
emit insert_notify_commit_4c "" $T $r "" "" "" "pgbench -c 4, INSERT + pg_notify in one transaction, no listener"
$P/py/venv/bin/python -c "
import psycopg,sys,time
c=psycopg.connect('dbname=floor',autocommit=True); c.execute('listen jobs')
t=time.monotonic()+$T+3
while time.monotonic()<t:
    for _ in c.notifies(timeout=0.5): pass
" & L=$!
sleep 1
r=$($B/pgbench -n -M simple -c 4 -j 2 -T $T -f floor/insert_notify.sql floor 2>/dev/null | tps)
emit insert_notify_commit_4c_listener "" $T $r "" "" "" "as above with one LISTENing psycopg session that reads every notification"
wait $L

# 2 bulk INSERT … SELECT
$psql -c "create table bulk(id bigint primary key, payload jsonb not null)" -c checkpoint
s=$(python3 - <<'PY'
import subprocess,time,os
t=time.monotonic()
subprocess.run([os.environ.get("PGBIN","/usr/lib/postgresql/15/bin")+"/psql","-q","-d","floor","-c","insert into bulk select i, jsonb_build_object('k','noop','i',i) from generate_series(1,1000000) i"],check=True)
print(time.monotonic()-t)
PY
)
emit insert_select_bulk 1000000 $s $(python3 -c "print(round(1000000/$s,1))") "" "" "" "one INSERT…SELECT generate_series(1,1000000), (id bigint pk, payload jsonb)"

# 3 claim 100 + delete 100, SKIP LOCKED. one_tx: DELETE of a locked batch; two_tx: claim commits, then the delete commits
cat > floor/one_tx.sql <<'Q'
delete from q where id in (select id from q order by id for update skip locked limit 100);
Q
cat > floor/two_tx.sql <<'Q'
with c as (select id from q where st = 0 order by id for update skip locked limit 100), u as (update q set st = 1 from c where q.id = c.id returning q.id) select coalesce('array['||string_agg(id::text, ',')||']::bigint[]', 'array[]::bigint[]') as ids from u \gset
delete from q where id = any(:ids);
Q
for k in one_tx two_tx; do for c in 1 2 4; do
  rows=400000; [ $k = two_tx ] && rows=200000
  $psql -c "drop table if exists q" -c "create table q(id bigint primary key, st smallint not null default 0)" \
        -c "insert into q select i from generate_series(1,$rows) i" -c "vacuum analyze q" -c checkpoint
  t=$((rows/100/c))
  out=$($B/pgbench -n -M simple -c $c -j 2 -t $t -f floor/$k.sql floor 2>/dev/null); r=$(echo "$out" | tps)
  left=$($psql -c "select count(*) from q")
  emit claim_delete_${k}_${c}c $((rows-left)) $(python3 -c "print(round($t*$c/$r,3))") $(python3 -c "print(round(($rows-$left)/($t*$c/$r),1))") "" "" "" "pgbench -c $c, batches of 100 from 2-column (id pk, st smallint); $left of $rows rows left"
done; done

# 4 LISTEN/NOTIFY
j=$($P/py/venv/bin/python notify_rtt.py 2000)
emit notify_roundtrip 2000 "" "" $(echo $j | python3 -c 'import json,sys; j=json.load(sys.stdin); print(j["p50_ms"],j["p95_ms"],j["p99_ms"])') "psycopg 3, from before pg_notify (commit included) to receipt on another connection"

# 5 bare fsync and commit latency for reference
j=$($B/pgbench -n -M prepared -c 1 -T 5 -f floor/insert.sql floor 2>/dev/null | sed -n 's/^latency average = \([0-9.]*\) ms/\1/p')
emit insert_commit_latency "" 5 "" "$j" "" "" "pgbench average latency of one INSERT commit at 1 client (in p50_ms: it is the mean)"
