// Goroutines pass messages over channels, with select, timers, mutexes and contexts.
// Exercises the scheduler: futexes, epoll, timers and signals that preempt running goroutines.
// Arguments: MESSAGES (default 150000).
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// pingpong sends each message to another goroutine and back.
func pingpong(messages int) int {
	there, back := make(chan int), make(chan int)
	go func() {
		for m := range there {
			back <- m + 1
		}
		close(back)
	}()
	sum := 0
	for m := 0; m < messages; m++ {
		there <- m
		sum += <-back
	}
	close(there)
	return sum
}

// pipeline sieves primes through a chain of goroutines.
func pipeline(primes int) int {
	source := make(chan int)
	stop := make(chan struct{})
	go func() {
		for n := 2; ; n++ {
			select {
			case source <- n:
			case <-stop:
				return
			}
		}
	}()
	in, prime := (<-chan int)(source), 0
	for i := 0; i < primes; i++ {
		prime = <-in
		out := make(chan int)
		go func(in <-chan int, out chan<- int, prime int) {
			for {
				select {
				case n := <-in:
					if n%prime == 0 {
						continue
					}
					select {
					case out <- n:
					case <-stop:
						return
					}
				case <-stop:
					return
				}
			}
		}(in, out, prime)
		in = out
	}
	close(stop)
	return prime
}

// workers adds under a mutex, with an atomic and over a buffered channel.
func workers(count, rounds int) (locked int, atomics, sent int64) {
	var lock sync.Mutex
	var group sync.WaitGroup
	results := make(chan int64, 16)
	for w := 0; w < count; w++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for r := 0; r < rounds; r++ {
				lock.Lock()
				locked++
				lock.Unlock()
				atomic.AddInt64(&atomics, int64(r&3))
				if r%16 == 0 {
					results <- 1
				}
			}
		}()
	}
	go func() { group.Wait(); close(results) }()
	for n := range results {
		sent += n
	}
	return
}

// timers checks that sleeps are never short, and that a ticker, a deadline and preemption work.
func timers() string {
	early := 0
	for i := 0; i < 20; i++ {
		start := time.Now()
		time.Sleep(time.Duration(i) * 100 * time.Microsecond)
		if time.Since(start) < time.Duration(i)*100*time.Microsecond {
			early++
		}
	}
	ticker, ticks := time.NewTicker(2*time.Millisecond), 0
	for range ticker.C {
		if ticks++; ticks == 10 {
			break
		}
	}
	ticker.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	// Loops without a call: only a signal can take them off their threads.
	var spins [8]int64
	for i := range spins {
		go func(p *int64) {
			for n := 0; atomic.LoadInt64(p) == 0; n++ {
			}
		}(&spins[i])
	}
	<-ctx.Done()
	for i := range spins {
		atomic.StoreInt64(&spins[i], 1)
	}
	return fmt.Sprint(early, " early, ", ticks, " ticks, ", ctx.Err())
}

func main() {
	messages := 150000
	if len(os.Args) > 1 {
		n, err := strconv.Atoi(os.Args[1])
		if err != nil || n < 1 {
			fmt.Fprintln(os.Stderr, "pingpong: give a number of messages, 1 or more")
			os.Exit(2)
		}
		messages = n
	}
	fmt.Println("ping-pong sum", pingpong(messages))
	fmt.Println("prime", pipeline(messages/2000+2))
	locked, atomics, sent := workers(8, messages/2)
	fmt.Println("workers", locked, atomics, sent)
	fmt.Println("timers:", timers())
}
