# title: Clang builds zlib and its tests pass
# version: clang --version | head -n 1
# timeout: 300
cp -r /src/zlib-* zlib && cd zlib
CC=clang CFLAGS=-O2 ./configure --static >/dev/null && make -s -j2 libz.a example minigzip 2>&1 | grep -iE 'error|warning'
./example
head -c 2000000 /usr/bin/git >in; for level in 1 6 9; do ./minigzip -$level <in >out.gz && ./minigzip -d <out.gz | cmp - in && echo level $level; done
