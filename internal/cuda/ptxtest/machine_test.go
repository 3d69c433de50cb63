package ptxtest

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/internal/cuda/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

//go:embed testdata/sample.ptx
var sample []byte

// machine is a device with a context that is current and a stream.
type machine struct {
	*Device
	t testing.TB
	s driver.Stream
	m driver.Module
}

// start opens a machine and loads ptx.
func start(t testing.TB, o Options, ptx []byte) *machine {
	d := New(o)
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	c, err := d.Retain(0)
	require.NoError(t, err)
	require.NoError(t, d.Push(c))
	s, err := d.StreamCreate()
	require.NoError(t, err)
	m, log, err := d.ModuleLoad(ptx)
	require.NoError(t, err, log)
	return &machine{d, t, s, m}
}

// bytesOf is the little-endian image of numbers.
func bytesOf(v any) []byte {
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// give allocates device memory that holds v.
func (m *machine) give(v any) driver.Ptr {
	b := bytesOf(v)
	p, err := m.Alloc(uint64(max(len(b), 1)))
	require.NoError(m.t, err)
	require.NoError(m.t, m.CopyToDevice(p, b, m.s))
	return p
}

// take reads into v, a slice, what is at p when the stream is done.
func (m *machine) take(p driver.Ptr, v any) {
	b := make([]byte, binary.Size(v))
	require.NoError(m.t, m.CopyToHost(b, p, m.s))
	require.NoError(m.t, m.StreamSynchronize(m.s))
	require.NoError(m.t, binary.Read(bytes.NewReader(b), binary.LittleEndian, v))
}

// arguments packs a kernel's parameters.
func arguments(args ...any) []byte {
	var b []byte
	for _, a := range args {
		v := bytesOf(a)
		for len(b)%len(v) != 0 {
			b = append(b, 0)
		}
		b = append(b, v...)
	}
	return b
}

func (m *machine) launch(name string, grid, block, shared uint32, args ...any) error {
	f, err := m.Function(m.m, name)
	require.NoError(m.t, err)
	return m.Launch(f, driver.Dim{X: grid, Y: 1, Z: 1}, driver.Dim{X: block, Y: 1, Z: 1}, shared, m.s, arguments(args...))
}
