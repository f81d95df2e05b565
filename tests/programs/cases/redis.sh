# title: Redis: units of its own test suite
# version: redis-server --version
# keep: ^\S*\[(ok|err|exception)\S*\]: .*
# drop: \x1b\[[0-9;]*m| \(\d+ ms\)
# order: any
# timeout: 300
cp -r /src/redis-*/ /scratch/redis && cd /scratch/redis
for program in server cli benchmark check-rdb check-aof; do ln -sf /usr/bin/redis-$program src/redis-$program; done
tclsh tests/test_helper.tcl --clients 2 --timeout 250 --tags -slow --single unit/type/string --single unit/type/incr --single unit/type/set \
    --single unit/expire --single unit/multi --single unit/scan --single unit/bitops --single unit/hyperloglog --single unit/quit
