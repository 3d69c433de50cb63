package determinism

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	_ "github.com/gopccl/gopccl/backends/defaults"
	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plan compares the processor's backends, and others that do everything themselves.
func plan(t *testing.T, own ...Machine) Plan {
	t.Helper()
	list, _, err := CPUs()
	require.NoError(t, err)
	require.Equal(t, "cpu_generic", list[0].Name())
	return Plan{
		Reference: list[0], Others: append(list[1:len(list):len(list)], own...),
		Rest: func(m Machine) bool { return len(own) > 0 && m == own[0] },
	}
}

func rows(t *testing.T, p Plan) (list []Row, ok bool) {
	t.Helper()
	ok, err := p.Run(context.Background(), func(r Row) error {
		list = append(list, r)
		return nil
	})
	require.NoError(t, err)
	return list, ok
}

// Every processor computes what was recorded, and its backends agree.
func TestThisProcessor(t *testing.T) {
	list, ok := rows(t, plan(t))
	for _, r := range list {
		require.True(t, r.OK, "%+v", r) // S0-22
		require.NotEmpty(t, r.Want, "%+v", r)
	}
	require.True(t, ok)
	require.Len(t, known, 5*12+12+20+2+10, "operations, averages, quantizers' types, hashes, functions")
}

// mutant differs in one thing from the machine it is made of.
type mutant struct {
	Machine
	reduce, hash func(b []byte)
	exp          func(s *ExpSums)
}

func (*mutant) Name() string { return "mutant" }

func (m *mutant) Reduce(t dtype.Type, op dtype.Op, dst, a, b []byte) error {
	err := m.Machine.Reduce(t, op, dst, a, b)
	if m.reduce != nil && t == dtype.Float32 && op == dtype.Prod {
		m.reduce(dst)
	}
	return err
}

func (m *mutant) Hash(b []byte, offset int) (uint32, error) {
	h, err := m.Machine.Hash(b, offset)
	if m.hash != nil && offset == 3 {
		h ^= 1
	}
	return h, err
}

func (m *mutant) Exp(_ context.Context, step uint64) (s ExpSums, err error) {
	s = Reported
	if step != 1 {
		s = ExpSums{NaN: nanInputs(step)}
	}
	if m.exp != nil {
		m.exp(&s)
	}
	return s, nil
}

// One wrong bit is found and named.
func TestDifferencesAreFound(t *testing.T) {
	differing := func(m *mutant, step uint64) (list []Row) {
		p := plan(t, m)
		m.Machine = p.Reference
		p.Elements, p.Step = 512, step
		all, ok := rows(t, p)
		for _, r := range all {
			if !r.OK {
				list = append(list, r)
			}
		}
		require.Equal(t, len(list) == 0, ok)
		return list
	}
	require.Empty(t, differing(&mutant{}, 1<<20))

	bad := differing(&mutant{reduce: func(b []byte) { b[5] ^= 1 }}, 0)
	require.Len(t, bad, 1)
	require.Equal(t, "prod float32", bad[0].Case)
	require.Equal(t, "mutant", bad[0].On)
	require.EqualValues(t, 1, bad[0].Differ)

	// Other bits of a NaN count, and are told apart.
	bad = differing(&mutant{reduce: func(b []byte) {
		for i := 0; i < len(b); i += 4 {
			if isNaN(dtype.Float32, load(dtype.Float32, b[i:])) {
				b[i] ^= 2
			}
		}
	}}, 0)
	require.Len(t, bad, 1)
	require.NotZero(t, bad[0].NaNs)
	require.Equal(t, bad[0].NaNs, bad[0].Differ)
	require.Equal(t, bad[0].Want, bad[0].Value, "the digest takes all NaNs for one")

	bad = differing(&mutant{hash: func([]byte) {}}, 0)
	require.Len(t, bad, 1)
	require.Equal(t, "hash", bad[0].Check)

	p := plan(t)
	p.Elements = 16
	p.Hashers, _ = Hashers()
	require.NotEmpty(t, p.Hashers)
	p.Hashers = append(p.Hashers, crc{p.Hashers[0]})
	all, ok := rows(t, p)
	require.False(t, ok)
	for _, r := range all {
		require.Equal(t, r.On != "hasher crc", r.OK, "%+v", r)
	}

	bad = differing(&mutant{exp: func(s *ExpSums) { s.NaN++ }}, 1<<20)
	require.Len(t, bad, 1)
	require.Equal(t, "NaN", bad[0].Case)
}

// crc is a hasher that hashes something else.
type crc struct{ digest.Hasher }

func (crc) Name() string                 { return "crc" }
func (c crc) SimpleHash(b []byte) uint32 { return c.CRC32C(b) }

// Sums of all patterns are held against the report's on a device.
func TestReportIsWhatADeviceIsHeldAgainst(t *testing.T) {
	p := plan(t)
	p.Reference = &mutant{Machine: p.Reference, exp: func(s *ExpSums) { *s = Ours }}
	p.Others = []Machine{&mutant{Machine: p.Reference, exp: func(s *ExpSums) { s.XOR ^= 4 }}}
	p.Rest, p.Elements, p.Step = nil, 16, 1
	all, ok := rows(t, p)
	require.False(t, ok)
	var wrong []Row
	for _, r := range all {
		if !r.OK {
			wrong = append(wrong, r)
		}
	}
	require.Len(t, wrong, 1)
	require.Equal(t, "PCCL report", wrong[0].Against) // S2-38
	require.Equal(t, "0x45ABDA35", wrong[0].Want)
	require.Equal(t, "0x45ABDA31", wrong[0].Value)
}

type failing struct{ Machine }

func (failing) Reduce(dtype.Type, dtype.Op, []byte, []byte, []byte) error { return errors.New("gone") }

func TestErrorsEndIt(t *testing.T) {
	p := plan(t)
	p.Others = []Machine{failing{p.Reference}}
	_, err := p.Run(context.Background(), func(Row) error { return nil })
	require.EqualError(t, err, "reduce sum uint8 on cpu_generic: gone")

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = plan(t).Run(ctx, func(Row) error { return nil })
	require.ErrorIs(t, err, context.Canceled)
}

// Every pattern is ordinary, special or random, and floats are mostly numbers.
func TestPatterns(t *testing.T) {
	for typ := range dtype.Type(dtype.NumTypes) {
		b := patterns(typ, 4096, 1)
		require.Equal(t, b, patterns(typ, 4096, 1))
		require.NotEqual(t, b, patterns(typ, 4096, 2))
		seen, nans := map[uint64]bool{}, 0
		for i := 0; i < len(b); i += typ.Size() {
			v := load(typ, b[i:])
			seen[v] = true
			if isNaN(typ, v) {
				nans++
			}
		}
		for _, s := range specials(typ) {
			require.True(t, seen[s], "%v: %#x", typ, s)
		}
		if typ.IsFloat() {
			require.NotZero(t, nans)
			require.Less(t, nans, 1024)
		}
	}
}
