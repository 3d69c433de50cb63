package digest_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/digest/digesttest"
	"github.com/gopccl/gopccl/core/errs"
)

// driver makes what its fields say.
type driver struct {
	digest.Hasher
	rank  int
	probe error
	made  *int
}

func (d driver) Rank() int    { return d.rank }
func (d driver) Probe() error { return d.probe }
func (d driver) New() (digest.Hasher, error) {
	if d.made != nil {
		*d.made++
	}
	return d.Hasher, nil
}

// mutant has one fault.
type mutant struct {
	digest.Hasher
	simple, crc func(b []byte, sum uint32) uint32
}

func (mutant) Name() string { return "mutant" }

func (m mutant) SimpleHash(b []byte) uint32 {
	if m.simple != nil {
		return m.simple(b, digest.SimpleHash(b))
	}
	return digest.SimpleHash(b)
}

func (m mutant) CRC32C(b []byte) uint32 {
	if m.crc != nil {
		return m.crc(b, digest.CRC32C(b))
	}
	return digest.CRC32C(b)
}

// blocks is a mutant that shares a buffer out, wrongly.
type blocks struct{ mutant }

func (blocks) Block(b []byte) uint32 { return uint32(len(b)) }

// Hashing spec, sections 1 and 2: the built-in hashers that this processor can run,
// at any alignment (quirk Q45).
func TestBuiltInHashers(t *testing.T) {
	ran := 0
	for _, name := range []string{"cpu_generic", "cpu_avx", "cpu_neon"} {
		h, _, err := digest.Select(name)
		if err != nil && name != "cpu_generic" {
			require.Regexp(t, "the processor does not have|unknown hasher", err)
			continue
		}
		require.NoError(t, err)
		ran++
		require.Equal(t, name, h.Name())
		t.Run(name, func(t *testing.T) { digesttest.Run(t, driver{Hasher: h}) }) // S0-17, S1-21
	}
	require.Positive(t, ran)
}

// auto takes the vectors of the processor where it has them.
func TestAuto(t *testing.T) {
	best := "cpu_generic"
	for _, name := range []string{"cpu_avx", "cpu_neon"} {
		if _, _, err := digest.Select(name); err == nil {
			best = name
		}
	}
	for _, name := range []string{"", digest.Auto} {
		h, _, err := digest.Select(name)
		require.NoError(t, err)
		require.Equal(t, best, h.Name())
	}
}

// A hasher with any of these faults is refused by name, and passed over by auto
// even if it ranks highest.
func TestWrongHasherIsRefused(t *testing.T) {
	long := func(n int) func([]byte, uint32) uint32 {
		return func(b []byte, sum uint32) uint32 {
			if len(b) > n {
				sum++
			}
			return sum
		}
	}
	for name, h := range map[string]digest.Hasher{
		"always zero":     mutant{simple: func([]byte, uint32) uint32 { return 0 }},
		"last bytes":      mutant{simple: func(b []byte, _ uint32) uint32 { return digest.SimpleHash(b[:len(b)/4*4]) }},
		"longer blocks":   mutant{simple: long(960 * 4096)},
		"several blocks":  mutant{simple: long(4096)},
		"other crc":       mutant{crc: func(_ []byte, sum uint32) uint32 { return ^sum }},
		"blocks, cut":     blocks{},
		"panics at start": mutant{simple: func([]byte, uint32) uint32 { panic("no device") }},
	} {
		t.Run(name, func(t *testing.T) {
			name := "wrong " + name
			t.Cleanup(digest.Replace(name, driver{Hasher: h, rank: 1000}))
			_, _, err := digest.Select(name)
			require.ErrorIs(t, err, errs.InvalidArgument)
			require.ErrorContains(t, err, name)
			if name != "wrong panics at start" {
				require.ErrorIs(t, err, digest.ErrWrong)
				require.ErrorIs(t, digest.Check(h), digest.ErrWrong)
			}
			auto, passed, err := digest.Select(digest.Auto)
			require.NoError(t, err)
			require.NotEqual(t, "mutant", auto.Name())
			require.ErrorContains(t, errors.Join(passed...), name)
		})
	}
}

// What runs is made and checked once; what does not run is asked again.
func TestHasherIsMadeOnce(t *testing.T) {
	made := 0
	t.Cleanup(digest.Replace("once", driver{Hasher: mutant{}, rank: -1, made: &made}))
	for range 3 {
		_, _, err := digest.Select("once")
		require.NoError(t, err)
	}
	require.Equal(t, 1, made)

	busy := driver{Hasher: mutant{}, rank: -1, probe: errors.New("the device is busy")}
	t.Cleanup(digest.Replace("busy", &busy))
	_, _, err := digest.Select("busy")
	require.ErrorIs(t, err, errs.InvalidArgument)
	require.ErrorIs(t, err, busy.probe)
	require.NotErrorIs(t, err, digest.ErrWrong)
	busy.probe = nil
	_, _, err = digest.Select("busy")
	require.NoError(t, err)
}

func TestUnknownHasher(t *testing.T) {
	_, _, err := digest.Select("md5")
	require.ErrorIs(t, err, errs.InvalidArgument)
	require.ErrorContains(t, err, "cpu_generic")
	require.Panics(t, func() { digest.Register(digest.Auto, driver{}) })
	require.Panics(t, func() { digest.Register("cpu_generic", driver{}) })
}

// fresh makes another hasher with each call.
type fresh struct{ driver }

func (d fresh) New() (digest.Hasher, error) { return &struct{ digest.Hasher }{d.Hasher}, nil }

// Sessions of one process select at the same time, and get the same hasher,
// whichever of them made it.
func TestSelectAtOnce(t *testing.T) {
	good, _, err := digest.Select("cpu_generic")
	require.NoError(t, err)
	name := fmt.Sprintf("at once %x", rand.Uint64())
	digest.Register(name, fresh{driver{Hasher: good, rank: -1}})
	const sessions = 8
	type answer struct {
		h   digest.Hasher
		err error
	}
	begin, found := make(chan struct{}), make(chan answer, sessions)
	for range sessions {
		go func() {
			<-begin
			h, _, err := digest.Select(name)
			found <- answer{h, err}
		}()
	}
	close(begin)
	first := <-found
	for a, left := first, sessions; ; a = <-found {
		require.NoError(t, a.err)
		require.Same(t, first.h, a.h)
		if left--; left == 0 {
			return
		}
	}
}
