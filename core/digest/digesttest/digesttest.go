// Package digesttest is the proof that a hasher does what digest.Hasher asks: the
// values that compiled PCCL 1.0.0 gave, and those of the specification's text for
// all short lengths and around every edge, at every address and for tensors of
// every type; alone, by many goroutines, and shared out over the cores; without
// an allocation, and without touching a byte beside the buffer.
package digesttest

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/internal/allocs"
	"github.com/gopccl/gopccl/internal/fenced"
)

// Run checks the hasher of d. A driver whose Probe fails skips nothing: the caller
// decides whether a machine without the hardware is a failure.
func Run(t *testing.T, d digest.Driver) {
	if err := d.Probe(); err != nil {
		t.Fatalf("probe: %v", err)
	}
	h, err := d.New()
	if err != nil {
		t.Fatalf("new: %v", err)
	}
	if name := h.Name(); name == "" || name == digest.Auto {
		t.Errorf("bad name %q", name)
	}
	if err := digest.Check(h); err != nil { // Select would refuse it
		t.Error(err)
	}
	for _, c := range []struct {
		name  string
		check func(digest.Hasher) error
	}{
		{"recorded values", checkRecorded},
		{"text", checkText},
		{"long buffers", checkLong},
		{"addresses", checkAddresses},
		{"types", checkTypes},
		{"shared out", checkSharedOut},
		{"buffer unchanged", checkUnchanged},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.check(h); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("fences", func(t *testing.T) {
		if err := checkFences(h, fenced.Memory(t, 4*row)); err != nil {
			t.Error(err)
		}
	})
	t.Run("allocations", func(t *testing.T) {
		for _, n := range []int{0, 15, row, 100_003} {
			b := random(1, n)
			if k := allocs.PerRun(10, func() { h.SimpleHash(b); h.CRC32C(b) }); k != 0 {
				t.Errorf("%v allocations for %d bytes, want none", k, n)
			}
		}
	})
	t.Run("concurrent", func(t *testing.T) {
		for i := range 4 {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				for range 2 {
					if err := checkAddresses(h); err != nil {
						t.Error(err)
					}
				}
			})
		}
	})
}

const (
	row       = 4096      // bytes that the 256 accumulators of a block take in turn
	maxBlocks = 960       // blocks of a buffer
	edge      = row * 960 // bytes from which on blocks are longer than a row
)

//go:embed testdata/hash.json
var recorded []byte

// checkRecorded compares with what compiled PCCL 1.0.0 gave (hashing spec, sections
// 1 and 2): all 205 values, but for those of the longest buffers where code is slow.
func checkRecorded(h digest.Hasher) error {
	var file struct {
		Vectors []struct {
			Gen, SimpleHash, CRC32 string
			Len                    int
		}
	}
	if err := json.Unmarshal(recorded, &file); err != nil {
		return err
	}
	if len(file.Vectors) != 205 {
		return fmt.Errorf("%d recorded values", len(file.Vectors))
	}
	for _, v := range file.Vectors {
		if v.Len > 1<<22 && testing.Short() || v.Len > 1<<20 && slow {
			continue // what they add is the longer blocks, which checkLong has, too
		}
		simple, err := strconv.ParseUint(v.SimpleHash, 16, 32)
		if err != nil {
			return err
		}
		crc, err := strconv.ParseUint(v.CRC32, 16, 32)
		if err != nil {
			return err
		}
		shifts := 16
		if v.Len > 1<<16 {
			shifts = 2
		}
		data := generate(v.Gen, v.Len)
		room := make([]byte, v.Len+shifts)
		for shift := range shifts {
			b := room[shift : shift+v.Len]
			copy(b, data)
			if err := equal(h, b, uint32(simple), uint32(crc)); err != nil {
				return fmt.Errorf("generator %s, address + %d: %w", v.Gen, shift, err)
			}
		}
	}
	return nil
}

// generate makes the buffers of hash.json by their two rules.
func generate(gen string, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		if gen == "lin" {
			b[i] = byte(i*131 + 7*n)
		} else {
			b[i] = byte(uint32(i)*2654435761>>24) ^ byte(n)
		}
	}
	return b
}

// equal compares both hashes of b.
func equal(h digest.Hasher, b []byte, simple, crc uint32) error {
	if got := h.SimpleHash(b); got != simple {
		return fmt.Errorf("SimpleHash of %d bytes is %08x, want %08x", len(b), got, simple)
	}
	if got := h.CRC32C(b); got != crc {
		return fmt.Errorf("CRC-32C of %d bytes is %08x, want %08x", len(b), got, crc)
	}
	return nil
}

// checkText compares with the text of the specification for every length up to
// some rows.
func checkText(h digest.Hasher) error {
	data := random(1, row+104)
	for n := range data {
		if err := equal(h, data[:n], simpleHash(data[:n]), crc32c(data[:n])); err != nil {
			return err
		}
	}
	return nil
}

// checkLong looks at the edge where blocks grow longer, and at blocks of several
// rows, some of which are empty.
func checkLong(h digest.Hasher) error {
	data := random(2, 3*edge+70_007)
	lengths := []int{2 * row, edge - 1, edge + 16}
	if !slow {
		lengths = append(lengths, edge, edge+15, edge+row, edge+70_000)
	}
	if !slow && !testing.Short() {
		lengths = append(lengths, 2*edge+48, 3*edge, 3*edge+70_001)
	}
	for _, n := range lengths {
		b := data[n%7:][:n]
		if err := equal(h, b, simpleHash(b), crc32c(b)); err != nil {
			return err
		}
	}
	return nil
}

// checkAddresses hashes the same bytes at every address modulo 64.
func checkAddresses(h digest.Hasher) error {
	for _, n := range []int{1, 3, 16, 63, 70, 1000, 2*row + 21} {
		data := random(3, n)
		simple, crc := simpleHash(data), crc32c(data)
		room := make([]byte, n+64)
		for offset := range 64 {
			b := room[offset:][:n]
			copy(b, data)
			if err := equal(h, b, simple, crc); err != nil {
				return fmt.Errorf("address + %d: %w", offset, err)
			}
		}
	}
	return nil
}

// checkTypes hashes tensors of every element type, as a shared state has them.
func checkTypes(h digest.Hasher) error {
	data := random(4, 8*3001)
	for typ := range dtype.Type(dtype.NumTypes) {
		for _, elements := range []int{0, 1, 2, 3, 5, 8, 255, 256, 1000, 3001} {
			b := data[:elements*typ.Size()]
			if err := equal(h, b, simpleHash(b), crc32c(b)); err != nil {
				return fmt.Errorf("%d elements of %v: %w", elements, typ, err)
			}
		}
	}
	return nil
}

// checkSharedOut compares buffers that are hashed together, cut for several
// workers, with each of them alone.
func checkSharedOut(h digest.Hasher) error {
	ctx := context.Background()
	const part = 1 << 20 // what one worker takes at a time
	var bufs [][]byte
	var want []uint32
	for i, n := range []int{0, 1, 16, 5000, part, 2*part - 1, 2 * part, 2*part + 1, 3*part + 5, edge + 4095, 9*part + 4095, 0} {
		if n > edge+4095 && testing.Short() || n > edge && slow {
			continue
		}
		b := random(uint64(i), n)
		bufs, want = append(bufs, b), append(want, h.SimpleHash(b))
		for _, workers := range []int{1, 3} {
			crc, err := digest.CRC32CParallel(ctx, b, h, workers)
			if alone := h.CRC32C(b); err != nil || crc != alone {
				return fmt.Errorf("CRC-32C of %d bytes by %d workers is %08x, %v; alone it is %08x", n, workers, crc, err, alone)
			}
		}
	}
	for _, workers := range []int{-1, 0, 1, 2, 3, 16, 1000} {
		if slow && workers != 0 && workers != 3 {
			continue
		}
		got, err := digest.SimpleHashAll(ctx, bufs, h, workers)
		if err != nil {
			return err
		}
		for i := range want {
			if got[i] != want[i] {
				return fmt.Errorf("SimpleHash of %d bytes by %d workers is %08x; alone it is %08x", len(bufs[i]), workers, got[i], want[i])
			}
		}
	}
	return nil
}

// checkUnchanged looks at the buffer afterwards.
func checkUnchanged(h digest.Hasher) error {
	b := random(5, 3*row+33)
	before := bytes.Clone(b)
	h.SimpleHash(b)
	h.CRC32C(b)
	if !bytes.Equal(before, b) {
		return fmt.Errorf("the buffer has other bytes than before")
	}
	return nil
}

// checkFences hashes buffers at both ends of fenced memory: a byte read beside it
// ends the process.
func checkFences(h digest.Hasher, fenced []byte) error {
	_, _ = rand.NewChaCha8([32]byte{6}).Read(fenced)
	size := len(fenced)
	for n := 0; n <= size; n += 53 {
		for _, b := range [][]byte{fenced[:n], fenced[size-n:]} {
			if err := equal(h, b, simpleHash(b), crc32c(b)); err != nil {
				return err
			}
		}
	}
	return nil
}

func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b)
	return b
}
