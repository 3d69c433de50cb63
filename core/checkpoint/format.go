package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"os"
	"unicode/utf8"

	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
)

// The file, all numbers little-endian:
//
//	8 bytes   magic "gopcclC1"
//	8 bytes   n, length of the header, at most maxHeader
//	n bytes   header, JSON
//	          zeros up to the next multiple of 64
//	payload   the tensors in the order of the header, each followed by zeros
//	          up to the next multiple of 64
//	32 bytes  SHA-256 of everything before
const (
	magic     = "gopcclC1"
	preamble  = len(magic) + 8
	maxHeader = 16 << 20
	align     = 64
	sumSize   = 32
)

// header is the JSON part of a file.
type header struct {
	Revision  uint64            `json:"revision"`
	ByteOrder string            `json:"byte_order"`
	Meta      map[string]string `json:"meta,omitempty"`
	Tensors   []entry           `json:"tensors"`
}

// entry describes one tensor; Offset counts from the start of the payload.
type entry struct {
	Key             string `json:"key"`
	DType           string `json:"dtype"`
	Offset          int64  `json:"offset"`
	Size            int64  `json:"size"`
	AllowInequality bool   `json:"allow_inequality,omitempty"`
}

func byteOrder() string {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return "little"
	}
	return "big"
}

func aligned(n int64) int64 { return (n + align - 1) &^ (align - 1) }

// makeHeader returns the first part of the file, padding included.
func makeHeader(s *State) ([]byte, error) {
	h := header{Revision: s.Revision, ByteOrder: byteOrder(), Meta: s.Meta, Tensors: make([]entry, len(s.Tensors))}
	seen := make(map[string]bool, len(s.Tensors))
	at := int64(0)
	for i := range s.Tensors {
		t := &s.Tensors[i]
		switch {
		case !utf8.ValidString(t.Key):
			return nil, fmt.Errorf("key %q is not UTF-8", t.Key)
		case seen[t.Key]:
			return nil, fmt.Errorf("two tensors are called %q", t.Key)
		case !t.Device.None() && len(t.Data) > 0:
			return nil, fmt.Errorf("tensor %q lies on the host and on a device", t.Key)
		case !t.DType.Valid():
			return nil, fmt.Errorf("tensor %q has no element type (%d)", t.Key, t.DType)
		}
		seen[t.Key] = true
		h.Tensors[i] = entry{
			Key: t.Key, DType: t.DType.String(), Offset: at, Size: t.bytes(), AllowInequality: t.AllowInequality,
		}
		at += aligned(t.bytes())
	}
	for k, v := range s.Meta {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return nil, fmt.Errorf("meta entry %q is not UTF-8", k)
		}
	}
	js, err := json.Marshal(&h)
	if err != nil {
		return nil, err
	}
	if len(js) > maxHeader {
		return nil, fmt.Errorf("the header would have %d bytes, at most %d are allowed", len(js), maxHeader)
	}
	b := append([]byte(magic), make([]byte, 8)...)
	binary.LittleEndian.PutUint64(b[len(magic):], uint64(len(js)))
	b = append(b, js...)
	return append(b, make([]byte, aligned(int64(len(b)))-int64(len(b)))...), nil
}

// write writes the file's bytes to w.
func write(w io.Writer, head []byte, s *State) error {
	sum := digest.NewSHA256()
	out := io.MultiWriter(w, sum)
	if _, err := out.Write(head); err != nil {
		return err
	}
	var zeros [align]byte
	for i := range s.Tensors {
		t := &s.Tensors[i]
		if err := t.writeTo(out); err != nil {
			return err
		}
		if _, err := out.Write(zeros[:aligned(t.bytes())-t.bytes()]); err != nil {
			return err
		}
	}
	_, err := w.Write(sum.Sum(nil))
	return err
}

// file is an open checkpoint whose SHA-256 is right and whose header is sound.
type file struct {
	f       *os.File
	head    header
	types   []dtype.Type // of head.Tensors
	payload int64        // offset in the file
}

func (f *file) Close() error { return f.f.Close() }

func corrupt(path string, format string, args ...any) error {
	return errs.New(errs.CorruptFile, "load checkpoint", fmt.Errorf(format, args...)).WithPeer(path)
}

// open opens and verifies a file. Damage is *errs.Error with code
// CorruptFile; what the system says is Internal, or InvalidArgument if there
// is no such file.
func open(path string) (*file, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, ioError("load checkpoint", path, err)
	}
	c, err := verify(f, path)
	if err != nil {
		f.Close()
		return nil, err
	}
	return c, nil
}

func verify(f *os.File, path string) (*file, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, ioError("load checkpoint", path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, corrupt(path, "not a file")
	}
	size := info.Size()
	if size < int64(preamble+sumSize) {
		return nil, corrupt(path, "%d bytes are too few", size)
	}
	var pre [preamble]byte
	if _, err := f.ReadAt(pre[:], 0); err != nil {
		return nil, readError(path, err)
	}
	if string(pre[:len(magic)]) != magic {
		return nil, corrupt(path, "does not begin with %q", magic)
	}
	n := binary.LittleEndian.Uint64(pre[len(magic):])
	if n > maxHeader || int64(n) > size-int64(preamble+sumSize) {
		return nil, corrupt(path, "a header of %d bytes does not fit", n)
	}
	// The hash before anything is believed.
	sum := digest.NewSHA256()
	if err := hashRange(sum, f, size-sumSize); err != nil {
		return nil, readError(path, err)
	}
	var want [sumSize]byte
	if _, err := f.ReadAt(want[:], size-sumSize); err != nil {
		return nil, readError(path, err)
	}
	if !bytes.Equal(sum.Sum(nil), want[:]) {
		return nil, corrupt(path, "the SHA-256 does not match")
	}
	js := make([]byte, n)
	if _, err := f.ReadAt(js, int64(preamble)); err != nil {
		return nil, readError(path, err)
	}
	c := &file{f: f, payload: aligned(int64(preamble) + int64(n))}
	c.head, c.types, err = parseHeader(js, size-sumSize-c.payload)
	if err != nil {
		return nil, corrupt(path, "header: %w", err)
	}
	return c, nil
}

// hashRange feeds the first n bytes of f to sum.
func hashRange(sum hash.Hash, f *os.File, n int64) error {
	buf := make([]byte, min(n, 1<<20))
	for at := int64(0); at < n; {
		k, err := f.ReadAt(buf[:min(n-at, int64(len(buf)))], at)
		if k == 0 && err != nil {
			return err
		}
		sum.Write(buf[:k])
		at += int64(k)
	}
	return nil
}

// parseHeader checks that the header describes exactly payload bytes.
func parseHeader(js []byte, payload int64) (header, []dtype.Type, error) {
	var h header
	if err := json.Unmarshal(js, &h); err != nil {
		return h, nil, err
	}
	if h.ByteOrder != byteOrder() {
		return h, nil, fmt.Errorf("byte order %q, this machine has %q", h.ByteOrder, byteOrder())
	}
	seen := make(map[string]bool)
	var types []dtype.Type
	at := int64(0)
	for i, e := range h.Tensors {
		d, err := dtype.ParseType(e.DType)
		switch {
		case err != nil:
			return h, nil, fmt.Errorf("tensor %d: %w", i, err)
		case seen[e.Key]:
			return h, nil, fmt.Errorf("two tensors are called %q", e.Key)
		case e.Offset != at:
			return h, nil, fmt.Errorf("tensor %q at %d instead of %d", e.Key, e.Offset, at)
		case e.Size < 0 || e.Size > payload-at || e.Size > math.MaxInt64-align:
			return h, nil, fmt.Errorf("tensor %q has %d bytes, %d are left", e.Key, e.Size, payload-at)
		}
		seen[e.Key] = true
		types = append(types, d)
		at += aligned(e.Size)
	}
	if at != payload {
		return h, nil, fmt.Errorf("%d bytes of tensors, %d in the file", at, payload)
	}
	return h, types, nil
}

// read fills t with tensor i.
func (f *file) read(i int, t *Tensor) error {
	e := &f.head.Tensors[i]
	err := t.readFrom(io.NewSectionReader(f.f, f.payload+e.Offset, e.Size))
	var of *errs.Error
	if err == nil || errors.As(err, &of) {
		return err
	}
	return readError(f.f.Name(), err)
}

// readError sorts an error of a read: a file that is shorter than it was a
// moment ago is damaged.
func readError(path string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt(path, "shorter than it was: %w", err)
	}
	return ioError("load checkpoint", path, err)
}

func ioError(op, path string, err error) error {
	code := errs.Internal
	if errors.Is(err, os.ErrNotExist) {
		code = errs.InvalidArgument
	}
	return errs.New(code, op, err).WithPeer(path)
}
