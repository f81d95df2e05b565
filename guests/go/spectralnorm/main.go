// Approximates the spectral norm of an infinite matrix by the power method, then steps an orbit.
// Exercises floating-point divide, multiply and add as Go compiles them, and for package math.
// Results are rounded in print: Go may fuse multiply and add on one machine and not on another.
// Arguments: SIDE (default 420).
package main

import (
	"fmt"
	"math"
	"os"
	"strconv"
)

func element(i, j int) float64 { return 1 / float64((i+j)*(i+j+1)/2+i+1) }

// apply computes out = A v, or its transpose's product.
func apply(out, v []float64, transposed bool) {
	for i := range out {
		sum := 0.0
		for j, x := range v {
			if transposed {
				sum += element(j, i) * x
			} else {
				sum += element(i, j) * x
			}
		}
		out[i] = sum
	}
}

func norm(n int) float64 {
	u, v, t := make([]float64, n), make([]float64, n), make([]float64, n)
	for i := range u {
		u[i] = 1
	}
	for i := 0; i < 10; i++ {
		apply(t, u, false)
		apply(v, t, true)
		apply(t, v, false)
		apply(u, t, true)
	}
	dot, square := 0.0, 0.0
	for i := range u {
		dot += u[i] * v[i]
		square += v[i] * v[i]
	}
	return math.Sqrt(dot / square)
}

// orbit sums elementary functions along a slow spiral.
func orbit(steps int) float64 {
	sum := 0.0
	for i := 1; i <= steps; i++ {
		x := float64(i) / 64
		sum += math.Sin(x)*math.Exp(-x/1000) + math.Log1p(x)/math.Hypot(x, 1) + math.Atan2(x, 2) - math.Floor(x/3)
	}
	return sum
}

func main() {
	side := 420
	if len(os.Args) > 1 {
		n, err := strconv.Atoi(os.Args[1])
		if err != nil || n < 1 || n > 100000 {
			fmt.Fprintln(os.Stderr, "spectralnorm: give a side from 1 to 100000")
			os.Exit(2)
		}
		side = n
	}
	fmt.Printf("norm %.9f\norbit %.6f\n", norm(side), orbit(side*100))
}
