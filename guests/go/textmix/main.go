// Searches text with regular expressions, and writes and reads JSON.
// Exercises maps, reflection, string handling and calls through interfaces.
// Arguments: REPEATS (default 36).
package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

type order struct {
	Number   int               `json:"number"`
	Customer string            `json:"customer"`
	Lines    []line            `json:"lines"`
	Notes    map[string]string `json:"notes,omitempty"`
	Paid     bool              `json:"paid"`
}

type line struct {
	Item  string  `json:"item"`
	Count uint16  `json:"count"`
	Price float64 `json:"price"`
}

var (
	mail   = regexp.MustCompile(`[a-z]+(\.[a-z]+)*@[a-z]+\.(org|net|example)`)
	number = regexp.MustCompile(`\b[0-9]+(\.[0-9]+)?\b`)
	words  = regexp.MustCompile(`(?i)\b(river|horse|dragon|map)s?\b`)
)

// text makes some 20 kB of words, addresses and numbers.
func text(seed uint32) string {
	pieces := []string{"the river", "a horse", "Dragons", "maps", "carried", "li.wei@luo.example", "x@y", "3.25", "417", "out of"}
	var b strings.Builder
	for b.Len() < 20000 {
		seed = seed*1664525 + 1013904223
		b.WriteString(pieces[seed>>16%uint32(len(pieces))])
		b.WriteByte(" ,.\n"[seed>>28&3])
	}
	return b.String()
}

func orders(n int) []order {
	var list []order
	for i := 0; i < n; i++ {
		o := order{Number: i, Customer: "customer \u9f99\u9a6c <" + strconv.Itoa(i*i) + ">", Paid: i%3 == 0}
		for j := 0; j <= i%5; j++ {
			o.Lines = append(o.Lines, line{Item: fmt.Sprint("item ", j), Count: uint16(i * j), Price: float64(i*100+j) / 4})
		}
		if i%2 == 0 {
			o.Notes = map[string]string{"b": "second", "a": strconv.Quote("fi\"rst"), "c": "\t"}
		}
		list = append(list, o)
	}
	return list
}

func main() {
	repeats := 36
	if len(os.Args) > 1 {
		n, err := strconv.Atoi(os.Args[1])
		if err != nil || n < 1 {
			fmt.Fprintln(os.Stderr, "textmix: give a number of repeats, 1 or more")
			os.Exit(2)
		}
		repeats = n
	}
	sum := fnv.New64a()
	counts := map[string]int{}
	for r := 0; r < repeats; r++ {
		t := text(uint32(r))
		for _, w := range words.FindAllString(t, -1) {
			counts[strings.ToLower(w)]++
		}
		counts["mail"] += len(mail.FindAllStringIndex(t, -1))
		sum.Write([]byte(number.ReplaceAllString(t, "<$0>")))
		encoded, err := json.Marshal(orders(60))
		if err != nil {
			panic(err)
		}
		var decoded []order
		if err := json.Unmarshal(encoded, &decoded); err != nil {
			panic(err)
		}
		again, _ := json.MarshalIndent(decoded, "", " ")
		sum.Write(again)
	}
	var names []string
	for name := range counts {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		fmt.Println(name, counts[name])
	}
	fmt.Printf("textmix %016x\n", sum.Sum64())
}
