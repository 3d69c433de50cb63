// Package scratch gives tests directories that are removed with the calls which Wine
// knows, too. The removal of testing.T.TempDir opens files relative to a directory's
// handle, which Wine does not implement.
package scratch

import (
	"os"
	"path/filepath"
	"testing"
)

// Dir returns a directory that is removed with all in it when the test ends. A test fails
// whose directory cannot be removed: something still holds a file in it.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gopccl")
	if err != nil {
		t.Fatalf("make a directory for the test: %v", err)
	}
	t.Cleanup(func() {
		if err := Remove(dir); err != nil {
			t.Errorf("remove the directory of the test: %v", err)
		}
	})
	return dir
}

// Remove removes a file or a directory with all in it.
func Remove(path string) error {
	names, _ := os.ReadDir(path) // none for a file
	for _, n := range names {
		if err := Remove(filepath.Join(path, n.Name())); err != nil {
			return err
		}
	}
	return os.Remove(path)
}
