package digest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"

	"github.com/gopccl/gopccl/core/digest"
)

// metered counts the bytes that it hashes, and leaves the work to another hasher.
// One that gives it to an accelerator has the same methods.
type metered struct {
	digest.BlockHasher // so that all cores share a buffer
	bytes              *atomic.Int64
}

func (metered) Name() string { return "metered" }

func (m metered) SimpleHash(b []byte) uint32 {
	m.bytes.Add(int64(len(b)))
	return m.BlockHasher.SimpleHash(b)
}

func (m metered) Block(b []byte) uint32 {
	m.bytes.Add(int64(len(b)))
	return m.BlockHasher.Block(b)
}

// meteredDriver makes it.
type meteredDriver struct{}

func (meteredDriver) Rank() int    { return -1 } // for those who ask for it
func (meteredDriver) Probe() error { return nil }

func (meteredDriver) New() (digest.Hasher, error) {
	h, _, err := digest.Select("cpu_generic")
	if err != nil {
		return nil, err
	}
	return metered{h.(digest.BlockHasher), new(atomic.Int64)}, nil
}

func init() { digest.Register("metered", meteredDriver{}) }

// A hasher of one's own. Since it is registered, trainers use it by its name:
// core.Options{Hash: core.HashSettings{Hasher: "metered"}}, or `peer.hasher: metered`.
func Example() {
	h, _, err := digest.Select("metered")
	if err != nil {
		log.Fatal(err)
	}
	before := h.(metered).bytes.Load() // it was checked
	sum, err := digest.SimpleHashParallel(context.Background(), make([]byte, 3<<20), h, 4)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%08x, %d bytes\n", sum, h.(metered).bytes.Load()-before)
	// Output:
	// 2a8de2dd, 3145728 bytes
}

// broken computes a hash of its own.
type broken struct{}

func (broken) Name() string               { return "broken" }
func (broken) SimpleHash(b []byte) uint32 { return digest.CRC32C(b) }
func (broken) CRC32C(b []byte) uint32     { return digest.CRC32C(b) }

// Before a hasher takes part in an election it has to give the values of PCCL.
func ExampleCheck() {
	err := digest.Check(broken{})
	fmt.Println(errors.Is(err, digest.ErrWrong), err)
	// Output:
	// true its hashes are not those of PCCL: SimpleHash of 1 bytes is 86b737ba, want e54b6b05
}
