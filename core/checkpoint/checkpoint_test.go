package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/scratch"
)

func sample(revision uint64) State {
	return State{
		Revision: revision,
		Meta:     map[string]string{"step": "12", "über": "\x00\n\""},
		Tensors: []Tensor{
			{Key: "w", Data: []byte("0123456789ab"), DType: dtype.Float32},
			{Key: "", Data: []byte{}, DType: dtype.Uint8},
			{Key: "b/größe", Data: bytes.Repeat([]byte{7}, 64), DType: dtype.BFloat16, AllowInequality: true},
			{Key: "x", Data: []byte{1}, DType: dtype.Int8},
		},
	}
}

func save(t testing.TB, dir string, s State, keep int) string {
	t.Helper()
	path, left, err := Save(dir, s, keep)
	require.Empty(t, left)
	require.NoError(t, err)
	return path
}

func requireCorrupt(t testing.TB, err error, what string) {
	t.Helper()
	require.Equal(t, errs.CorruptFile, errs.CodeOf(err), "%s: %v", what, err)
}

func TestRoundTrip(t *testing.T) {
	dir := filepath.Join(scratch.Dir(t), "new", "directory")
	want := sample(1<<63 + 5)
	path := save(t, dir, want, 0)
	got, err := Load(path)
	require.NoError(t, err)
	require.Equal(t, want, got)
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, names, 1, "no temporary file stays")

	empty := save(t, dir, State{}, 0)
	got, err = Load(empty)
	require.NoError(t, err)
	require.Equal(t, State{Tensors: []Tensor{}}, got)
}

func TestRoundTripProperty(t *testing.T) {
	dir := scratch.Dir(t)
	rapid.Check(t, func(r *rapid.T) {
		var s State
		s.Revision = rapid.Uint64().Draw(r, "revision")
		s.Tensors = []Tensor{}
		for i, n := range rapid.SliceOfN(rapid.IntRange(0, 300), 0, 8).Draw(r, "sizes") {
			s.Tensors = append(s.Tensors, Tensor{
				Key:             fmt.Sprintf("%s%d", rapid.String().Draw(r, "key"), i),
				Data:            rapid.SliceOfN(rapid.Byte(), n, n).Draw(r, "data"),
				DType:           dtype.Type(rapid.IntRange(0, dtype.NumTypes-1).Draw(r, "type")),
				AllowInequality: rapid.Bool().Draw(r, "may differ"),
			})
		}
		path, _, err := Save(dir, s, 1)
		require.NoError(r, err)
		got, err := Load(path)
		require.NoError(r, err)
		require.Equal(r, s, got)
	})
}

// The layout of the file, byte by byte.
func TestFormat(t *testing.T) {
	s := State{Revision: 3, Tensors: []Tensor{{Key: "w", Data: []byte("abc"), DType: dtype.Uint8}}}
	b, err := os.ReadFile(save(t, scratch.Dir(t), s, 0))
	require.NoError(t, err)
	js := fmt.Sprintf(`{"revision":3,"byte_order":%q,"tensors":[{"key":"w","dtype":"uint8","offset":0,"size":3}]}`, byteOrder())
	want := append([]byte("gopcclC1"), byte(len(js)), 0, 0, 0, 0, 0, 0, 0)
	want = append(want, js...)
	want = append(want, make([]byte, 128-len(want))...)
	want = append(want, "abc"...)
	want = append(want, make([]byte, 61)...)
	sum := sha256.Sum256(want)
	require.Equal(t, append(want, sum[:]...), b)
}

// A file that ends at any position, or has any byte changed, is not loaded.
func TestEveryDamageIsFound(t *testing.T) {
	dir := scratch.Dir(t)
	whole, err := os.ReadFile(save(t, dir, sample(5), 0))
	require.NoError(t, err)
	path := filepath.Join(dir, "damaged")
	try := func(b []byte, what string) {
		t.Helper()
		require.NoError(t, os.WriteFile(path, b, 0o666))
		_, err := Load(path)
		requireCorrupt(t, err, what)
		ts := sample(0).Tensors
		_, err = LoadInto(path, ts)
		requireCorrupt(t, err, what)
		require.Equal(t, sample(0).Tensors, ts, what)
	}
	step := 1
	if testing.Short() {
		step = 7
	}
	for n := 0; n < len(whole); n += step {
		try(whole[:n], fmt.Sprintf("cut at %d", n))
	}
	for i := 0; i < len(whole); i += step {
		b := bytes.Clone(whole)
		b[i] ^= 1 << (i % 8)
		try(b, fmt.Sprintf("byte %d changed", i))
	}
	try(append(bytes.Clone(whole), 0), "one byte more")
	try(make([]byte, 1<<20), "zeros")
}

// forge makes a file whose SHA-256 is right around any header and payload.
func forge(n uint64, js string, payload int) []byte {
	b := append([]byte(magic), make([]byte, 8)...)
	binary.LittleEndian.PutUint64(b[len(magic):], n)
	b = append(b, js...)
	b = append(b, make([]byte, int(aligned(int64(len(b))))-len(b)+payload)...)
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

// A header that lies is refused although its hash is right, and costs no memory.
func TestLyingHeaders(t *testing.T) {
	one := func(tensor string) string {
		return fmt.Sprintf(`{"byte_order":%q,"tensors":[%s]}`, byteOrder(), tensor)
	}
	good := one(`{"key":"a","dtype":"uint8","offset":0,"size":3}`)
	path := filepath.Join(scratch.Dir(t), "forged")
	load := func(b []byte) error {
		require.NoError(t, os.WriteFile(path, b, 0o666))
		_, err := Load(path)
		return err
	}
	require.NoError(t, load(forge(uint64(len(good)), good, 64)))
	for name, b := range map[string][]byte{
		"huge header":     forge(1<<63, good, 64),
		"header too long": forge(maxHeader+1, good, 64),
		"header past end": forge(uint64(len(good)+500), good, 64),
		"payload missing": forge(uint64(len(good)), good, 0),
		"payload larger":  forge(uint64(len(good)), good, 128),
	} {
		requireCorrupt(t, load(b), name)
	}
	for _, tensor := range []string{
		`{"key":"a","dtype":"uint8","offset":0,"size":9223372036854775807}`,
		`{"key":"a","dtype":"uint8","offset":0,"size":4611686018427387904}`,
		`{"key":"a","dtype":"uint8","offset":0,"size":-3}`,
		`{"key":"a","dtype":"uint8","offset":64,"size":3}`,
		`{"key":"a","dtype":"uint8","offset":-64,"size":3}`,
		`{"key":"a","dtype":"complex","offset":0,"size":3}`,
		`{"key":"a","dtype":"uint8","offset":0,"size":3},{"key":"a","dtype":"uint8","offset":64,"size":0}`,
		`{"key":"a","dtype":"uint8","offset":0,"size":1e3}`,
		`7`, `{`,
	} {
		js := one(tensor)
		requireCorrupt(t, load(forge(uint64(len(js)), js, 64)), tensor)
	}
	foreign := strings.Replace(good, byteOrder(), "middle", 1)
	requireCorrupt(t, load(forge(uint64(len(foreign)), foreign, 64)), "byte order")
}

func TestSaveRefuses(t *testing.T) {
	dir := filepath.Join(scratch.Dir(t), "untouched")
	for name, s := range map[string]State{
		"twice": {Tensors: []Tensor{{Key: "a"}, {Key: "a"}}},
		"key":   {Tensors: []Tensor{{Key: "\xff"}}},
		"type":  {Tensors: []Tensor{{Key: "a", DType: dtype.NumTypes}}},
		"meta":  {Meta: map[string]string{"a": "\xff"}},
		"long":  {Meta: map[string]string{"a": strings.Repeat("x", maxHeader)}},
	} {
		_, _, err := Save(dir, s, 0)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), name)
	}
	require.NoDirExists(t, dir)

	occupied := filepath.Join(scratch.Dir(t), "file")
	require.NoError(t, os.WriteFile(occupied, nil, 0o666))
	_, _, err := Save(occupied, sample(1), 0)
	require.Equal(t, errs.Internal, errs.CodeOf(err))
}

// limited fails after n bytes.
type limited struct{ n int }

func (l *limited) Write(b []byte) (int, error) {
	if l.n -= len(b); l.n < 0 {
		return 0, io.ErrShortWrite
	}
	return len(b), nil
}

// A disk that is full at any position is an error, not a checkpoint.
func TestWriteErrorsAreReported(t *testing.T) {
	s := sample(1)
	head, err := makeHeader(&s)
	require.NoError(t, err)
	var whole bytes.Buffer
	require.NoError(t, write(&whole, head, &s))
	for n := range whole.Len() {
		require.ErrorIs(t, write(&limited{n: n}, head, &s), io.ErrShortWrite, "%d", n)
	}
	require.NoError(t, write(&limited{n: whole.Len()}, head, &s))
}

func TestKeep(t *testing.T) {
	dir := scratch.Dir(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "notes-r1.txt"), nil, 0o666))
	var paths []string
	// Revisions go back after a restart from an older state: what was saved
	// last is the newest all the same.
	for _, rev := range []uint64{10, 11, 12, 3, 4} {
		paths = append(paths, save(t, dir, sample(rev), 3))
		got, skipped, err := Latest(dir)
		require.NoError(t, err)
		require.Empty(t, skipped)
		require.Equal(t, paths[len(paths)-1], got)
	}
	for i, p := range paths {
		if i < 2 {
			require.NoFileExists(t, p)
		} else {
			require.FileExists(t, p)
		}
	}
	require.FileExists(t, filepath.Join(dir, "notes-r1.txt"))
	last := save(t, dir, sample(5), 1)
	files, err := list(dir)
	require.NoError(t, err)
	require.Len(t, files, 1)
	require.Equal(t, last, files[0].path)
}

// What a crashed process left is removed in time, what another one is writing is not.
func TestStaleTemporaryFiles(t *testing.T) {
	dir := scratch.Dir(t)
	const name = ".0000000001-r1-00000000.gopccl.0123456789abcde"
	for i, p := range []string{".gopccl-1.tmp", ".gopccl-2.tmp", name + "0.part", name + "1.part", ".mine.0123456789abcdef.part"} {
		p = filepath.Join(dir, p)
		require.NoError(t, os.WriteFile(p, []byte("half"), 0o666))
		if i%2 == 0 {
			old := time.Now().Add(-2 * stale)
			require.NoError(t, os.Chtimes(p, old, old))
		}
	}
	save(t, dir, sample(1), 0)
	require.NoFileExists(t, filepath.Join(dir, ".gopccl-1.tmp"))
	require.FileExists(t, filepath.Join(dir, ".gopccl-2.tmp"))
	require.NoFileExists(t, filepath.Join(dir, name+"0.part"))
	require.FileExists(t, filepath.Join(dir, name+"1.part"))
	require.FileExists(t, filepath.Join(dir, ".mine.0123456789abcdef.part"), "it is of no checkpoint")
	files, err := list(dir)
	require.NoError(t, err)
	require.Len(t, files, 1)
}

// The newest sound checkpoint is taken, damaged ones are named, and
// the checkpoint of another model is refused.
func TestLatestSkipsDamaged(t *testing.T) {
	dir := scratch.Dir(t)
	_, _, err := Latest(filepath.Join(dir, "missing"))
	require.Equal(t, errs.NoSharedStateAvailable, errs.CodeOf(err))
	good := save(t, dir, sample(7), 0)
	cut, empty := save(t, dir, sample(8), 0), save(t, dir, sample(9), 0)
	require.NoError(t, os.Truncate(cut, 100))
	require.NoError(t, os.Truncate(empty, 0))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "9999999999-r9-00000000.gopccl"), 0o777))

	path, skipped, err := Latest(dir)
	require.NoError(t, err)
	require.Equal(t, good, path)
	require.Len(t, skipped, 3)
	for i, name := range []string{"9999999999-r9", empty, cut} {
		require.Contains(t, skipped[i].Error(), name)
	}
	requireCorrupt(t, skipped[1], "empty")
	requireCorrupt(t, skipped[2], "cut")

	require.NoError(t, os.Remove(good))
	_, skipped, err = Latest(dir)
	require.Equal(t, errs.NoSharedStateAvailable, errs.CodeOf(err))
	require.ErrorIs(t, err, errs.CorruptFile, "the reasons are in the chain")
	require.Len(t, skipped, 3)
}

func TestLoadInto(t *testing.T) {
	path := save(t, scratch.Dir(t), sample(7), 0)
	blank := func() []Tensor {
		ts := sample(0).Tensors
		for i := range ts {
			ts[i].Data = make([]byte, len(ts[i].Data))
		}
		ts[0], ts[3] = ts[3], ts[0]
		return ts
	}
	ts := blank()
	s, err := LoadInto(path, ts)
	require.NoError(t, err)
	require.Equal(t, State{Revision: 7, Meta: sample(7).Meta}, s)
	ts[0], ts[3] = ts[3], ts[0]
	require.Equal(t, sample(7).Tensors, ts)

	for name, change := range map[string]func(ts []Tensor) []Tensor{
		"fewer":  func(ts []Tensor) []Tensor { return ts[1:] },
		"more":   func(ts []Tensor) []Tensor { return append(ts, Tensor{Key: "new", Data: []byte{}}) },
		"twice":  func(ts []Tensor) []Tensor { ts[1] = ts[0]; return ts },
		"name":   func(ts []Tensor) []Tensor { ts[0].Key = "y"; return ts },
		"type":   func(ts []Tensor) []Tensor { ts[2].DType = dtype.Float16; return ts },
		"size":   func(ts []Tensor) []Tensor { ts[3].Data = make([]byte, 8); return ts },
		"flag":   func(ts []Tensor) []Tensor { ts[0].AllowInequality = true; return ts },
		"nobody": func([]Tensor) []Tensor { return nil },
	} {
		ts := change(blank())
		_, err := LoadInto(path, ts)
		require.Equal(t, errs.Mismatch, errs.CodeOf(err), name)
		for _, x := range ts {
			require.Equal(t, make([]byte, len(x.Data)), x.Data, "%s: nothing is written", name)
		}
	}
}

func TestMissingFile(t *testing.T) {
	_, err := Load(filepath.Join(scratch.Dir(t), "none"))
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = LoadInto(filepath.Join(scratch.Dir(t), "none"), nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Load(scratch.Dir(t))
	require.Error(t, err)
}

// Any bytes, with the right hash around them or not: an error or a state that
// fits into the file, without more memory than the file is long.
func FuzzLoad(f *testing.F) {
	s := sample(5)
	head, err := makeHeader(&s)
	require.NoError(f, err)
	var whole bytes.Buffer
	require.NoError(f, write(&whole, head, &s))
	f.Add(whole.Bytes(), false)
	f.Add(whole.Bytes()[:whole.Len()-sumSize], true)
	f.Add(forge(2, "{}", 0), false)
	f.Fuzz(func(t *testing.T, b []byte, rehash bool) {
		if rehash {
			sum := sha256.Sum256(b)
			b = append(bytes.Clone(b), sum[:]...)
		}
		path := filepath.Join(scratch.Dir(t), "f")
		require.NoError(t, os.WriteFile(path, b, 0o666))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s, err := Load(path)
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100*len(b)+4<<20))
		if err != nil {
			var e *errs.Error
			require.True(t, errors.As(err, &e))
			requireCorrupt(t, err, "fuzzed")
			return
		}
		total := 0
		for _, x := range s.Tensors {
			total += len(x.Data)
		}
		require.LessOrEqual(t, total, len(b))
	})
}

// A checkpoint that is safe on the disk is one, whatever becomes of the old ones.
func TestSaveSucceedsWhenOldOnesCannotBeRemoved(t *testing.T) {
	dir := scratch.Dir(t)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "0000000001-r1-00000000.gopccl", "x"), 0o777)) // somebody's backup
	for i := range 3 {
		path, left, err := Save(dir, sample(uint64(i)), 1)
		require.NoError(t, err)
		require.Len(t, left, 1)
		require.ErrorIs(t, left[0], errs.Internal)
		require.ErrorContains(t, left[0], "00000000.gopccl")
		latest, skipped, err := Latest(dir)
		require.NoError(t, err)
		require.Empty(t, skipped)
		require.Equal(t, path, latest)
	}
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, names, 2, "the others were removed")
}
