// Package ports gives tests ports at which something can listen, now and again
// later. They lie below the ephemeral range, so that no outgoing connection takes
// one while nobody listens there, and each process that asks has ports of its own:
// test packages run at the same time.
package ports

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Blocks of ports from first on. What listens at the first port of a block owns
// the rest of it.
const (
	first  = 10_000
	blocks = 100
	size   = 100
)

var (
	mu   sync.Mutex
	held net.Listener // keeps the block
	base int
	next int
)

// claim takes a block for this process.
func claim() error {
	for _, n := range rand.Perm(blocks) {
		ln, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", first+n*size))
		if err == nil {
			held, base = ln, first+n*size
			return nil
		}
	}
	return fmt.Errorf("other processes hold all %d blocks of ports from %d on", blocks, first)
}

// Free returns n ports at which nobody listens, in any address of this machine. A
// port is returned again only when all others of this process were.
func Free(n int) ([]int, error) {
	mu.Lock()
	defer mu.Unlock()
	if held == nil {
		if err := claim(); err != nil {
			return nil, err
		}
	}
	var free []int
	for range size - 1 {
		if len(free) == n {
			break
		}
		port := base + 1 + next%(size-1)
		next++
		if ln, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			ln.Close()
			free = append(free, port)
		}
	}
	if len(free) < n {
		return nil, fmt.Errorf("%d of %d ports behind %d are free", len(free), n, base)
	}
	return free, nil
}

// Address is one of Free on the loopback interface.
func Address() (string, error) {
	free, err := Free(1)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("127.0.0.1:%d", free[0]), nil
}
