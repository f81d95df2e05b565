# title: git: commits, merges, rebase, repack, fsck, clone, bundle, daemon
# version: git --version
# timeout: 200
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000' GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
git init -q -b main repo && cd repo
cp -r /src/zlib-*/* . && git add -A && git commit -qm first && git rev-parse HEAD
for i in $(seq 30); do echo line $i >>notes.txt; sed -i "s/deflate/deflate$i/" deflate.c; git add -A; git commit -qm "change $i"; done
git rev-parse HEAD && git log --oneline | wc -l && git diff --stat HEAD~10 | tail -n 1
git checkout -qb side HEAD~15 && echo side >side.txt && git add . && git commit -qm side && git rebase -q main && git checkout -q main && git merge -q --no-ff -m merged side && git rev-parse HEAD
git log -p --stat | md5sum && git blame deflate.c | md5sum && git grep -c inflate | md5sum
git gc -q --aggressive && git fsck --full 2>&1 && git count-objects -v | grep -E 'in-pack|packs'
git bundle create -q ../all.bundle --all && git clone -q ../all.bundle ../from-bundle 2>&1 && git -C ../from-bundle rev-parse HEAD
git clone -q --depth 3 "file:///scratch/repo" ../shallow && git -C ../shallow log --oneline | wc -l
git daemon --export-all --base-path=/scratch --reuseaddr --listen=127.0.0.1 /scratch >/dev/null 2>&1 &
daemon=$!
for i in $(seq 100); do git ls-remote git://127.0.0.1/repo >/dev/null 2>&1 && break; sleep 0.1; done
git clone -q git://127.0.0.1/repo ../by-net && git -C ../by-net rev-parse HEAD
kill $daemon
git archive --format=tar HEAD | md5sum
git worktree add -q ../tree HEAD~3 2>&1 && git stash list && git bisect start HEAD HEAD~20 >/dev/null && git bisect run sh -c '! grep -q "line 25" notes.txt' | grep 'first bad'
