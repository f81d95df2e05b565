#!/usr/bin/env bash
# Tests `longma experiment`: killed and continued campaigns, concurrent campaigns, shards, errors.
# Usage: tests/experiments.sh LONGMA
set -euo pipefail

longma=$(readlink -f "$1")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
passed=0

good() { passed=$((passed + 1)); }
bad() {
    echo "experiments: $*"
    echo "experiments: $passed passed, 1 failed"
    exit 1
}
# fails_with WORDS COMMAND...: the command must fail with an error that contains WORDS.
fails_with() {
    local words=$1 output
    shift
    if output=$("$@" 2>&1); then bad "$* should fail"; fi
    grep -qF -- "$words" <<<"$output" || bad "$*: prints '$output', not '$words'"
    good
}
experiment() { timeout 300 "$longma" experiment "$@"; }
# runs EXPERIMENT...: runs experiments, which must succeed; shows the output if they fail.
runs() { experiment run "$@" >printed 2>&1 || bad "run $*: $(cat printed)"; }
queens=$root/experiments/queens-growth.toml

experiment check --all --folder "$root/experiments" >/dev/null || bad "some experiment has errors"
good
[ "$(experiment list --folder "$root/experiments" --format json | grep -c '"points"')" -ge 3 ] || bad "list"
good
runs "$queens" --store whole
good
experiment compare "$queens" --store whole --within 0 >/dev/null || bad "compare"
good
fails_with 'have no result yet' experiment compare "$queens" --store nothing
fails_with 'did you mean `queens-growth`' experiment run queens-grwth --folder "$root/experiments"
fails_with 'cannot write results to /proc' experiment run "$queens" --quick --store /proc/results
sed 's/^unit = "ways"/unti = "ways"/' "$queens" >wrong.toml
fails_with 'did you mean `unit`' experiment run wrong.toml --paths-from "$root/experiments"

# A killed campaign leaves the files of its runs; a later one with the same process ID must handle them.
TMPDIR=$scratch timeout 300 bash -c 'mkdir "$TMPDIR"/longma-$$-{0..9} && exec "$@"' - \
    "$longma" experiment run "$queens" --quick --store namesake >printed 2>&1 || bad "a namesake: $(cat printed)"
good

# Killed twenty times at different times, then run to the end.
for moment in $(seq 20); do
    "$longma" experiment run "$queens" --store killed >/dev/null 2>&1 &
    sleep "0.0$((moment * 7 % 10))$((RANDOM % 10))"
    kill -9 $! 2>/dev/null || rm -rf killed/segments
    wait $! 2>/dev/null || true
done
runs "$queens" --store killed
# Two campaigns at once, and three shards that are merged.
experiment run "$queens" --store both >second 2>&1 &
runs "$queens" --store both
wait $! || bad "the second of two: $(cat second)"
runs "$queens" --store both
for part in 1 2 3; do runs "$queens" --store "part$part" --shard $part/3; done
experiment merge part1 part2 part3 --store merged 2>/dev/null
runs "$queens" --store merged
for other in killed both merged; do
    for file in queens-growth.parquet queens-growth.jsonl; do
        cmp "whole/$file" "$other/$file" || bad "$other/$file is not what an uninterrupted run writes"
    done
    good
done

# Ctrl-C stops the campaign without incomplete results, and with its own exit status.
cp "$root/guests/prebuilt/loongarch64/queens" .
cat >long.toml <<END
format = 1
name = "long"
title = "A long one"
workload = "program"
[parameters]
program = "$scratch/queens"
[sweep]
argument = ["12", "13", "14"]
[metrics.instructions]
unit = "1"
END
# A shell without job control makes background processes ignore Ctrl-C; another program restores the default.
python3 -c 'import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])' \
    "$longma" experiment run long.toml --store long >/dev/null 2>errors &
campaign=$!
sleep 2
pgrep -f "$scratch/queens" >/dev/null || bad "nothing runs after 2 s: $(cat errors)"
kill -INT $campaign
status=0
wait $campaign || status=$?
[ $status = 130 ] || bad "Ctrl-C gives status $status: $(cat errors)"
grep -q 'points of long are left' errors || bad "Ctrl-C says: $(cat errors)"
pgrep -f "$scratch/queens" >/dev/null && bad "a program outlived its campaign"
good
sed -i 's/^title.*/&\ntime_limit = "100 ms"/' long.toml
experiment run long.toml --store long >late 2>&1 && bad "a point that takes too long is no success"
grep -q 'time_limit of 0.1 s' late || bad "a point that takes too long: $(cat late)"
good

experiment report "$queens" --store whole -o page.html && grep -q '<figure class="chart line"' page.html || bad "report"
good
echo "experiments: $passed passed, 0 failed"
