# title: Go builds and tests programs: go build, go vet, go test
# version: /usr/local/go/bin/go version
# timeout: 400
# needs: go
export GOROOT=/usr/local/go GOCACHE=/scratch/cache GOPATH=/scratch/gopath GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local CGO_ENABLED=0 PATH=/usr/local/go/bin:$PATH
mkdir -p m/sum && cd m && printf 'module example.com/m\n\ngo 1.21\n' >go.mod
cat >main.go <<'END'
package main

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"
	"sync"

	"example.com/m/sum"
)

func main() {
	var wait sync.WaitGroup
	var lock sync.Mutex
	got := map[string]int{}
	for i := 0; i < 8; i++ {
		wait.Add(1)
		go func() { defer wait.Done(); s := sum.Of(i * 1000); lock.Lock(); got[strings.Repeat("x", i)] = s; lock.Unlock() }()
	}
	wait.Wait()
	text, _ := json.Marshal(got)
	names := make([]string, 0)
	for name := range got { names = append(names, name) }
	sort.Strings(names)
	fmt.Println(string(text), len(names))
}
END
printf 'package sum\n\nfunc Of(n int) int {\n\ts := 0\n\tfor i := range make([]struct{}, n) {\n\t\ts += i\n\t}\n\treturn s\n}\n' >sum/sum.go
printf 'package sum\n\nimport "testing"\n\nfunc TestOf(t *testing.T) {\n\tif Of(10) != 45 {\n\t\tt.Fatal(Of(10))\n\t}\n}\n' >sum/sum_test.go
go build -p 2 -o main . && ./main && go vet -p 2 ./... && echo vetted && go test -p 2 ./... | sed 's/\t[0-9.]*s$//'
