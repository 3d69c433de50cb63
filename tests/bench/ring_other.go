//go:build !unix

package main

import (
	"errors"
	"time"
)

// ring needs calls of Unix systems; the comparison runs there.
type ring struct{}

func newRing(floorLinks, int, bool) (*ring, error) {
	return nil, errors.New("the floor is measured on Unix systems only")
}

func (*ring) run(order) (answer, error) { return answer{}, errors.ErrUnsupported }

func cpuTime() time.Duration { return 0 }
