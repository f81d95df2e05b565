# title: Redis: redis-benchmark, snapshots, append-only file
# keep: ^(ok|checked|dbsize|save|loaded|benchmark).*
# timeout: 200
redis-server --port 7001 --save '' --appendonly yes --dir /scratch --loglevel warning >log 2>&1 &
server=$!
for i in $(seq 200); do redis-cli -p 7001 ping 2>/dev/null | grep -q PONG && break; sleep 0.1; done
redis-benchmark -p 7001 -n 20000 -c 20 -P 8 -q -t set,get,incr,lpush,rpop,sadd,hset,zadd,mset >out 2>&1 && echo "benchmark ended with $?"
echo "dbsize $(redis-cli -p 7001 dbsize)"
echo "save $(redis-cli -p 7001 save)"
redis-cli -p 7001 shutdown nosave
wait $server
redis-server --port 7001 --save '' --appendonly yes --dir /scratch --loglevel warning >log 2>&1 &
server=$!
for i in $(seq 200); do redis-cli -p 7001 ping 2>/dev/null | grep -q PONG && break; sleep 0.1; done
echo "loaded $(redis-cli -p 7001 dbsize)"
redis-cli -p 7001 shutdown nosave
wait $server
redis-check-rdb dump.rdb | tail -n 1 | cut -c 1-3 >/dev/null && echo "checked $?"
