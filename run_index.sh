cd /work/wt/ycsb; export LONGMA_RESULTS=/work/scratch/ycsb/results
( time /work/target/ycsb/release/longma experiment run zoned-index ) > /work/scratch/ycsb/index.txt 2>&1
date -u >> /work/scratch/ycsb/index.txt
