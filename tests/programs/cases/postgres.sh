# title: PostgreSQL: initdb, pgbench, queries, recovery after a crash
# version: /usr/lib/postgresql/*/bin/postgres --version
# keep: ^(==|number of transactions|number of failed|ended).*
# drop: /\d+$
# timeout: 400
bin=$(echo /usr/lib/postgresql/*/bin)
mkdir -p data run && chown -R postgres:postgres /scratch && chmod 700 data
as() { setpriv --reuid postgres --regid postgres --clear-groups "$@"; }
as $bin/initdb -D data -A trust --no-instructions -E UTF8 --locale C >initdb.log 2>&1 || { cat initdb.log; exit 1; }
start() { setpriv --reuid postgres --regid postgres --clear-groups $bin/postgres -D data -k /scratch/run -c listen_addresses= >>log 2>&1 & server=$!
    for i in $(seq 300); do as $bin/pg_isready -q -h /scratch/run && return; sleep 0.2; done; tail log; }
sql() { as $bin/psql -h /scratch/run -d postgres -At -c "$1" | sed "s/^/== /"; }
start
as $bin/pgbench -q -h /scratch/run -i -s 1 postgres >/dev/null 2>&1; echo "ended init $?"
as $bin/pgbench -h /scratch/run -c 4 -j 2 -t 50 postgres 2>/dev/null; echo "ended pgbench $?"
sql "select count(*), sum(abalance) = (select sum(delta) from pgbench_history) from pgbench_accounts"
sql "create table t as select i, md5(i::text) m, (i * 7919) % 1000 k, i / 7.0 f from generate_series(1, 20000) i"
sql "create index on t(k); analyze t"
sql "select md5(string_agg(m, '' order by i)), sum(f), avg(k) from t"
sql "select a.k, count(*) from t a join t b on a.k = b.k where a.k < 5 group by 1 order by 1"
sql "select jsonb_agg(x) from (select k, count(*) c from t group by k order by k limit 3) x"
sql "select regexp_replace('foobarbaz', 'b(..)', 'X\1Y', 'g'), to_char(timestamp '2026-01-02 03:04:05', 'Day DD Mon'), 2::numeric ^ 100, ln(10), exp(1.5)"
kill -QUIT $server; wait $server
start
sql "select count(*) from t"
kill -INT $server; wait $server; echo "ended server $?"
