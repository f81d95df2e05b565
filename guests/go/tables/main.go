// Fills, searches and empties maps, and sorts slices of numbers, strings and structures.
// Exercises hashing, string comparison, growing slices and the collector's scan of them.
// Arguments: ENTRIES (default 100000).
package main

import (
	"container/heap"
	"fmt"
	"os"
	"sort"
	"strconv"
)

type entry struct {
	name  string
	value uint64
}

type queue []entry

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].value < q[j].value }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)        { *q = append(*q, x.(entry)) }
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}

func mix(sum, value uint64) uint64 { return (sum ^ value) * 0x100000001b3 }

func main() {
	entries := 100000
	if len(os.Args) > 1 {
		n, err := strconv.Atoi(os.Args[1])
		if err != nil || n < 1 {
			fmt.Fprintln(os.Stderr, "tables: give a number of entries, 1 or more")
			os.Exit(2)
		}
		entries = n
	}
	state, sum := uint64(2463534242), uint64(0xcbf29ce484222325)
	next := func() uint64 {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		return state
	}
	byNumber, byName := map[uint64]int{}, map[string]uint64{}
	var list []entry
	for i := 0; i < entries; i++ {
		v := next() >> 8
		name := "n" + strconv.FormatUint(v%uint64(entries), 36)
		byNumber[v&0xffff]++
		byName[name] += v
		list = append(list, entry{name, v})
	}
	for i := 0; i < entries; i++ {
		if v, ok := byName["n"+strconv.FormatUint(next()%uint64(entries), 36)]; ok {
			sum = mix(sum, v)
		}
	}
	total := 0
	for key, count := range byNumber {
		total += count * int(key%7)
		if key%2 == 0 {
			delete(byNumber, key)
		}
	}
	fmt.Println("maps:", len(byName), "names,", len(byNumber), "numbers left, total", total)
	numbers := make([]int, len(list))
	names := make([]string, len(list))
	for i, e := range list {
		numbers[i], names[i] = int(e.value), e.name
	}
	sort.Ints(numbers)
	sort.Strings(names)
	sort.SliceStable(list, func(i, j int) bool { return list[i].name < list[j].name })
	q := queue(append([]entry(nil), list[:len(list)/4+1]...))
	heap.Init(&q)
	for q.Len() > 0 {
		sum = mix(sum, heap.Pop(&q).(entry).value)
	}
	for i := range numbers {
		sum = mix(sum, uint64(numbers[i])+uint64(len(names[i])))
		sum = mix(sum, list[i].value)
	}
	fmt.Printf("tables %016x\n", sum)
}
