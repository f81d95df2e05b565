# title: SQLite: speedtest1, compiled by GCC in the root
# version: sqlite3 --version
# keep: ^( *\d+ - |-- |built|ok).*
# drop: \.{2,}.*| +[\d.]+s$
# timeout: 300
gcc -O2 -o speedtest1 /src/sqlite3-*/test/speedtest1.c -lsqlite3 && echo built
./speedtest1 --size 12 --testset main test.db
sqlite3 test.db 'PRAGMA integrity_check' 
