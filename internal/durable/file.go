package durable

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// What is being written is named .NAME.TAG.part, with a tag of so many bytes in hexadecimal.
const (
	part    = ".part"
	tagSize = 8
)

// at is called before each step of a write; tests put something in its place.
var at = func(step, path string) {}

// File is one that is being written.
type File struct {
	*os.File
	path string
	over bool // it was kept, or dropped
}

// Begin makes a file that is to be at path, whose directory has to exist. perm is its mode,
// before the umask. The caller writes it, and ends it with Keep, KeepNew or Drop.
func Begin(path string, perm os.FileMode) (*File, error) {
	at("create", path)
	var tag [tagSize]byte
	_, _ = rand.Read(tag[:]) // it never fails
	dir, name := filepath.Split(path)
	f, err := os.OpenFile(filepath.Join(dir, "."+name+"."+hex.EncodeToString(tag[:])+part), os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return nil, err
	}
	return &File{File: f, path: path}, nil
}

// Keep makes f what its path has. When it returns nil, that survives a crash. Otherwise
// the path has what it had; only if the error is that of the directory, it has f.
func (f *File) Keep() error { return f.keep(replace) }

// KeepNew is Keep where nothing may be at the path: fs.ErrExist.
func (f *File) KeepNew() error { return f.keep(appear) }

func (f *File) keep(move func(from, to string) error) error {
	defer f.Drop()
	at("sync", f.path)
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	at("rename", f.path)
	if err := move(f.Name(), f.path); err != nil {
		return err
	}
	f.over = true
	return SyncDir(filepath.Dir(f.path))
}

// Drop removes a file that was not kept.
func (f *File) Drop() {
	if f.over {
		return
	}
	f.over = true
	f.Close() // before the removal, which Windows does not do otherwise
	os.Remove(f.Name())
}

// Replace makes b the contents of the file at path. perm is its mode, before the umask.
func Replace(path string, b []byte, perm os.FileMode) error {
	return write(path, b, perm, (*File).Keep)
}

// Create is Replace where nothing may be at the path: fs.ErrExist.
func Create(path string, b []byte, perm os.FileMode) error {
	return write(path, b, perm, (*File).KeepNew)
}

func write(path string, b []byte, perm os.FileMode, keep func(*File) error) error {
	f, err := Begin(path, perm)
	if err != nil {
		return err
	}
	at("write", path)
	if _, err := f.Write(b); err != nil {
		f.Drop()
		return err
	}
	return keep(f)
}

// Leaving reports whether a file of that name in a directory is one that was being written,
// and of what.
func Leaving(name string) (of string, ok bool) {
	rest, dotted := strings.CutPrefix(name, ".")
	rest, parted := strings.CutSuffix(rest, part)
	i := strings.LastIndexByte(rest, '.')
	if !dotted || !parted || i < 1 {
		return "", false
	}
	tag, err := hex.DecodeString(rest[i+1:])
	return rest[:i], err == nil && len(tag) == tagSize
}

// Clean removes what crashes have left in a directory, of these files or of all if none is
// named, if it is older than that. It does what it can. Another process may be writing what
// is young, unless the caller has the lock under which these files are written.
func Clean(dir string, age time.Duration, files ...string) {
	names, _ := os.ReadDir(dir)
	for _, n := range names {
		of, ok := Leaving(n.Name())
		if !ok || len(files) > 0 && !slices.Contains(files, of) {
			continue
		}
		if info, err := n.Info(); err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) >= age {
			_ = os.Remove(filepath.Join(dir, n.Name()))
		}
	}
}

// MakeDir makes dir and what is missing above it, so that a crash leaves all of them.
func MakeDir(dir string, perm os.FileMode) error {
	dir = filepath.Clean(dir)
	err := os.Mkdir(dir, perm)
	if parent := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && parent != dir {
		if err := MakeDir(parent, perm); err != nil {
			return err
		}
		err = os.Mkdir(dir, perm)
	}
	if err == nil {
		return SyncDir(filepath.Dir(dir))
	}
	if info, serr := os.Stat(dir); serr == nil && info.IsDir() {
		return nil
	}
	return err
}

// SyncDir makes what was renamed in dir survive a crash, where the system has a way to.
func SyncDir(dir string) error {
	at("sync directory", dir)
	return syncDir(dir)
}
