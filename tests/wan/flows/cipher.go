package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/gopccl/gopccl/tests/internal/netns"
)

// cipher compares all-reduces in plaintext with those in TLS, in turns, over links so slow
// that the processors are not what they wait for. The kernel limits the rates.
func cipher(_, _ int, _ float64) error {
	const bytes, turns = 64 << 20, 7
	fmt.Printf("All-reduce of %d MiB of float32, two peers, one connection, in plaintext and in TLS in turns:\n\n", bytes>>20)
	fmt.Println("| Mbit/s each way | plaintext, s | TLS, s | speed in TLS by that in plaintext, median of the turns |\n|---|---|---|---|")
	for _, rate := range []netns.Rate{100 * netns.Mbit, 400 * netns.Mbit, netns.Gbit} {
		var took [2][]time.Duration
		var pairs [2]*pair
		for i := range pairs {
			p, err := newPair(netns.Shape{Total: rate}, task{Pool: 1, Secure: i == 1})
			if err != nil {
				return err
			}
			defer p.close()
			pairs[i] = p
		}
		var ratios []float64
		for k := range 1 + turns { // the first one fills the window
			var each [2]time.Duration
			for turn := range pairs {
				i := (k + turn) % 2 // who follows whom changes
				d, err := pairs[i].reduce(bytes)
				if err != nil {
					return err
				}
				each[i] = d
			}
			if k > 0 {
				took[0], took[1] = append(took[0], each[0]), append(took[1], each[1])
				ratios = append(ratios, each[0].Seconds()/each[1].Seconds())
			}
		}
		slices.Sort(ratios)
		fmt.Printf("| %d | %.3f | %.3f | %.3f |\n", rate/netns.Mbit, median(took[0]).Seconds(), median(took[1]).Seconds(), ratios[len(ratios)/2])
	}
	fmt.Println("\nmark 0.97")
	return nil
}
