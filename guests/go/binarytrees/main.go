// Builds and drops many binary trees, some in goroutines: work for the garbage collector.
// Exercises allocation, pointer writes with barriers, and the collector's own threads and signals.
// Arguments: DEPTH (default 15).
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
)

type tree struct {
	left, right *tree
	value       int
}

func grow(depth, value int) *tree {
	if depth == 0 {
		return &tree{value: value}
	}
	return &tree{grow(depth-1, 2*value), grow(depth-1, 2*value+1), value}
}

func (t *tree) count() (nodes, sum int) {
	if t == nil {
		return 0, 0
	}
	n1, s1 := t.left.count()
	n2, s2 := t.right.count()
	return n1 + n2 + 1, s1 + s2 + t.value
}

func main() {
	depth := 15
	if len(os.Args) > 1 {
		d, err := strconv.Atoi(os.Args[1])
		if err != nil || d < 4 || d > 24 {
			fmt.Fprintln(os.Stderr, "binarytrees: give a depth from 4 to 24")
			os.Exit(2)
		}
		depth = d
	}
	kept := grow(depth, 1)
	lines := make([]string, depth+1)
	var group sync.WaitGroup
	for d := 4; d <= depth; d += 2 {
		group.Add(1)
		go func(d int) {
			defer group.Done()
			trees, nodes, sum := 1<<(depth-d+3), 0, 0
			for i := 0; i < trees; i++ {
				n, s := grow(d, i).count()
				nodes, sum = nodes+n, sum+s
			}
			lines[d] = fmt.Sprintf("%d trees of depth %d: %d nodes, sum %d", trees, d, nodes, sum)
		}(d)
	}
	group.Wait()
	for _, line := range lines {
		if line != "" {
			fmt.Println(line)
		}
	}
	nodes, sum := kept.count()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	fmt.Println("kept:", nodes, "nodes, sum", sum, "- the collector ran:", depth < 10 || memory.NumGC > 0)
}
