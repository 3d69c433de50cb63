package lead

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/master/fsm"
	"github.com/gopccl/gopccl/internal/scratch"
	"github.com/gopccl/gopccl/internal/wire"
)

var left = Kept{Key: bytes.Repeat([]byte{7}, KeySize), Registry: fsm.Registry{Groups: []fsm.GroupRecord{
	{ID: 0, Round: 1<<40 + 7, NextRevision: 12, Resumes: true, Members: []wire.UUID{{1}, {2, 15: 9}}},
	{ID: 4, Round: 3, NextRevision: 2, Print: &fsm.Fingerprint{1, 31: 2}},
}}}

// begin leads with dir, as a master that starts.
func begin(t *testing.T, dir string) (*File, uint32, Kept) {
	t.Helper()
	f := NewFile(dir)
	t.Cleanup(func() { f.Resign() })
	term, kept, lost, err := f.Lead(context.Background())
	require.NoError(t, err)
	require.Nil(t, lost)
	k, err := Decode(kept)
	require.NoError(t, err)
	return f, term, k
}

// Every master has a higher term than those before, and what the last one has committed.
func TestMastersOneAfterTheOther(t *testing.T) {
	dir := filepath.Join(scratch.Dir(t), "made", "here")
	f, term, k := begin(t, dir)
	require.Zero(t, term)
	require.Zero(t, k)
	require.NoError(t, f.Confirm(context.Background()))
	require.NoError(t, f.Commit(context.Background(), left.Encode()))
	require.NoError(t, f.Resign())
	require.Error(t, f.Confirm(context.Background()))
	require.Error(t, f.Commit(context.Background(), nil))
	for want := uint32(1); want < 4; want++ { // nothing is committed meanwhile
		f, term, k = begin(t, dir)
		require.Equal(t, want, term)
		require.Equal(t, left, k)
		require.NoError(t, f.Resign())
	}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 2, "the state and the lock")
}

// A second master is told so, and changes nothing; not even its end frees the first.
func TestOneMasterAtATime(t *testing.T) {
	dir := scratch.Dir(t)
	f, _, _ := begin(t, dir)
	for range 2 {
		second := NewFile(dir)
		_, _, _, err := second.Lead(context.Background())
		require.Equal(t, errs.InvalidUsage, errs.CodeOf(err))
		require.ErrorContains(t, err, "another master leads with "+dir)
		require.NoError(t, second.Resign())
	}
	_, _, _, err := f.Lead(context.Background())
	require.ErrorContains(t, err, "it leads already")
	require.NoError(t, f.Commit(context.Background(), left.Encode()))
	require.NoError(t, f.Resign())
	_, term, k := begin(t, dir)
	require.EqualValues(t, 1, term)
	require.Equal(t, left, k)
}

// What is damaged, foreign or cut is refused, and stays as it is.
func TestDamagedState(t *testing.T) {
	good := encode(7, left.Encode())
	last := encode(MaxTerm, left.Encode())
	flipped := []byte(strings.Replace(string(good), "term 7", "term 8", 1))
	later := Kept{}.Encode()
	later = encode(7, bytes.Replace(later, []byte(`"format": 1`), []byte(`"format": 2`), 1))
	for name, c := range map[string]struct {
		b    []byte
		text string
	}{
		"empty":         {nil, "not the state of a master"},
		"foreign":       {[]byte("PNG"), "not the state of a master"},
		"later version": {[]byte("gopccl master state 2\n"), "or of a later version"},
		"cut":           {good[:len(good)-1], "digest differs"},
		"flipped":       {flipped, "digest differs"},
		"header alone":  {[]byte(magic), "digest differs"},
		"last term":     {last, "is the last one"},
		"no term":       {sealed([]byte("tern 1\n")), "is not a term"},
		"high term":     {sealed([]byte("term 4294967295\n")), "is not a term"},
		"later format":  {later, "a later version has written it"},
		"no registry":   {encode(7, []byte("{")), "the registry is damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := scratch.Dir(t)
			path := filepath.Join(dir, stateName)
			require.NoError(t, os.WriteFile(path, c.b, 0o600))
			_, _, _, err := NewFile(dir).Lead(context.Background())
			require.Equal(t, errs.CorruptFile, errs.CodeOf(err))
			require.ErrorContains(t, err, c.text)
			require.ErrorContains(t, err, path)
			after, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, len(c.b), len(after))
			require.NoError(t, os.Remove(path))
			begin(t, dir) // the lock was given back
		})
	}
}

// A write that fails leaves what was there.
func TestFailedWrite(t *testing.T) {
	dir := scratch.Dir(t)
	f, _, _ := begin(t, dir)
	require.NoError(t, f.Commit(context.Background(), left.Encode()))
	f.dir = filepath.Join(dir, "none")
	err := f.Commit(context.Background(), nil)
	require.Error(t, err)
	var e *errs.Error
	require.True(t, errors.As(err, &e))
	_, kept, err := decode(mustRead(t, dir))
	require.NoError(t, err)
	require.Equal(t, left.Encode(), kept)
	_, _, _, err = NewFile(filepath.Join(dir, stateName)).Lead(context.Background())
	require.Equal(t, errs.InvalidUsage, errs.CodeOf(err), "the directory is a file")
}

func mustRead(t *testing.T, dir string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, stateName))
	require.NoError(t, err)
	return b
}

// What decodes was encoded so, and nothing makes the decoder panic.
func FuzzState(f *testing.F) {
	f.Add(encode(0, nil))
	f.Add(encode(7, left.Encode()))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		term, kept, err := decode(b)
		if err != nil {
			return
		}
		again, same, err := decode(encode(term, kept))
		if err != nil || again != term || !bytes.Equal(kept, same) {
			t.Fatalf("%v: term %d became %d", err, term, again)
		}
	})
}

// The digest hides the registry from a fuzzer of the file.
func FuzzKept(f *testing.F) {
	f.Add(left.Encode())
	f.Add([]byte(`{"format": 1, "groups": [{"group": 1, "round": 2, "next_revision": 3, "members": null}]}`))
	f.Add([]byte(`{"format": 1, "groups": [{"group": 1}, {"group": 1}]}`))
	f.Add([]byte(`{"format": 1, "key": "00"}`))
	f.Add([]byte(`{"format": 1, "groups": [{"print": "00"}]}`))
	f.Add([]byte(`{"format": 1, "groups": [{"members": ["01000000-0000-0000-0000-000000000000", "01000000-0000-0000-0000-000000000000"]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Decode(k.Encode())
		if err != nil || !bytes.Equal(again.Encode(), k.Encode()) {
			t.Fatalf("%v: %+v became %+v", err, k, again)
		}
	})
}

// An old copy of a directory learns of a later term, and keeps what it says.
func TestOldCopyLearnsOfATerm(t *testing.T) {
	dir := scratch.Dir(t)
	f, _, _ := begin(t, dir)
	require.Error(t, NewFile(dir).Raise(3))
	require.NoError(t, f.Commit(context.Background(), left.Encode()))
	require.NoError(t, f.Raise(41))
	require.NoError(t, f.Raise(0))
	require.NoError(t, f.Raise(MaxTerm))
	require.NoError(t, f.Resign())
	_, term, k := begin(t, dir)
	require.EqualValues(t, 42, term)
	require.Equal(t, left, k)
}
