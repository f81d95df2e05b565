# title: BusyBox: its own test suite
# version: busybox | head -n 1
# keep: ^(PASS|FAIL|SKIPPED|UNTESTED): .*
# timeout: 300
cp -r /src/busybox-* /work/busybox && cd /work/busybox/testsuite
ln -sf /usr/bin/busybox ../busybox
sed -n 's/^# CONFIG_\(.*\) is not set/# CONFIG_\1 is not set/p' /dev/null >../.config
busybox --list | tr a-z A-Z | sed 's/-/_/g; s/^/CONFIG_/; s/$/=y/' >>../.config
bindir=/work/busybox tsdir=/work/busybox/testsuite ./runtest 2>&1
